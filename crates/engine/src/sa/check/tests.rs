//! One line per check: what is wrong, and what is said.
