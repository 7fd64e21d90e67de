//! uxfrm engine.
