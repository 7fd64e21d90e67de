//! uxfrm packet.
