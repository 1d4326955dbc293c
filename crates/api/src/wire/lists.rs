//! Pages of lists on the wire.

use serde::Serialize;
use utoipa::ToSchema;

/// One page of a list, newest first.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct List<T> {
    /// Always `list`.
    #[schema(pattern = "^list$")]
    pub object: &'static str,
    /// The page's items.
    pub data: Vec<T>,
    /// There are more behind them.
    pub has_more: bool,
    /// The cursor of the next page; null on the last.
    pub next_cursor: Option<String>,
}

impl<T> List<T> {
    /// A page.
    #[must_use]
    pub fn new(data: Vec<T>, next_cursor: Option<String>) -> Self {
        Self { object: "list", data, has_more: next_cursor.is_some(), next_cursor }
    }
}
