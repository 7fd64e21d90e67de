//! uxfrm crypto.
