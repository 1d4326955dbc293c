//! JSON as clients send it: checked while it is parsed, then decoded with the place of whatever is wrong.

mod check;
mod decode;
mod pointer;
mod shape;
pub(crate) use pointer::escape;

pub(crate) use check::Checks;
pub(crate) use decode::decode;
pub use pointer::Pointer;
pub(crate) use shape::{mended, misfits, without};

mod parse;
pub use parse::{Malformed, parse};
