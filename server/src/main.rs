//! The `flashlane` binary.
fn main() {}
