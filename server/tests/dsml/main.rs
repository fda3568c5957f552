//! The output parser: hostile outputs by name, and the properties that must hold for all outputs.

mod notation;
mod properties;
mod table;
