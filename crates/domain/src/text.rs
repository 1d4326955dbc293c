//! Text for models and for Postgres: shaping to a budget, and what cannot be stored.

/// Whether Postgres can store the text (it refuses NUL).
#[must_use]
pub fn is_storable(text: &str) -> bool {
    !text.contains('\0')
}
