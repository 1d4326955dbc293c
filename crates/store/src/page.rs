//! Pages of lists, newest first, by the id of the last item seen.

use uuid::Uuid;

/// Which part of a list. Faces turn `after` into an opaque cursor.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    /// Most items, 1 to [`domain::limits::PAGE_ITEMS`]; larger values are cut.
    pub limit: u32,
    /// The last id of the page before.
    pub after: Option<Uuid>,
}

impl Default for Page {
    fn default() -> Self {
        Self { limit: domain::limits::PAGE_ITEMS_DEFAULT, after: None }
    }
}

/// One page.
#[derive(Debug, Clone)]
pub struct Listed<T> {
    /// Its items, newest first.
    pub items: Vec<T>,
    /// Where the next page begins; `None` when this is the last.
    pub next: Option<Uuid>,
}

impl Page {
    /// One row more than asked for tells whether there is another page.
    pub(crate) fn fetch(self) -> i64 {
        i64::from(self.limit.clamp(1, domain::limits::PAGE_ITEMS)) + 1
    }

    pub(crate) fn cut<T>(self, mut items: Vec<T>, id: impl Fn(&T) -> Uuid) -> Listed<T> {
        let limit = self.limit.clamp(1, domain::limits::PAGE_ITEMS) as usize;
        let more = items.len() > limit;
        items.truncate(limit);
        let next = if more { items.last().map(id) } else { None };
        Listed { items, next }
    }
}
