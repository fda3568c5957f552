//! The HTTP shell and the command line.
#![forbid(unsafe_code)]

pub mod chat;
pub mod dsml;
