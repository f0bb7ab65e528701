//! For tests: frames as guests and forgers send them.
