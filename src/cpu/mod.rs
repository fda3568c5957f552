//! The serving path without a GPU.

pub mod any_order;
