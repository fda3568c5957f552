//! The HTTP shell and the command line.
#![forbid(unsafe_code)]

pub mod tasks;
