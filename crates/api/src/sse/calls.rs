//! The events of one call as a source.

use std::sync::Arc;

use bytes::Bytes;
use domain::{CallId, Event, EventBody, TenantContext};
use serde_json::{Value, json};
use store::{CallChange, CallWatch, EventPage, StoreError};

use super::encode;
use super::follow::{Change, NoQueue, Read, Rest, Source};
use crate::state::ApiState;

/// Events read from the table at once.
pub(crate) const PAGE_EVENTS: u32 = 256;
/// Bytes of output read from the table at once.
pub(crate) const PAGE_BYTES: u64 = 64 * 1024;

/// The events of one call.
pub(crate) struct CallSource {
    state: ApiState,
    context: TenantContext,
    call_id: CallId,
    /// The number of the last event that was returned.
    cursor: u64,
    watch: CallWatch,
    /// The call has not been seen to start.
    queued: bool,
    place: Option<u64>,
}

/// One event of a batch that several readers share.
pub(crate) struct Shared {
    batch: Arc<[Event]>,
    index: usize,
}

impl CallSource {
    /// Events after `cursor`. `watch` was subscribed before `first` was read.
    pub(crate) fn new(
        state: ApiState,
        context: TenantContext,
        call_id: CallId,
        cursor: u64,
        watch: CallWatch,
        first: EventPage,
    ) -> (Self, Read<Shared>) {
        let queued = !first.ended && first.last_seq <= 1;
        let mut source = Self { state, context, call_id, cursor, watch, queued, place: None };
        let read = source.take(first);
        (source, read)
    }

    fn take(&mut self, page: EventPage) -> Read<Shared> {
        if page.pruned_before.is_some() {
            return Read { items: Vec::new(), rest: Rest::Gone };
        }
        let (last_seq, ended) = (page.last_seq, page.ended);
        let items = self.accept(page.events.into());
        let rest = match (self.cursor < last_seq, ended) {
            (true, _) => Rest::More,
            (false, true) => Rest::Nothing,
            (false, false) => Rest::Later,
        };
        Read { items, rest }
    }

    /// The events of a batch that come directly after the cursor.
    fn accept(&mut self, batch: Arc<[Event]>) -> Vec<Shared> {
        let mut items = Vec::new();
        for (index, event) in batch.iter().enumerate() {
            if event.seq == self.cursor + 1 {
                self.cursor = event.seq;
                self.queued &= matches!(event.body, EventBody::Queued { .. });
                items.push(Shared { batch: batch.clone(), index });
            }
        }
        items
    }
}

impl Source for CallSource {
    type Item = Shared;

    async fn read(&mut self) -> Result<Read<Shared>, StoreError> {
        let (context, id) = (&self.context, self.call_id);
        let page = self.state.store.events(context, id, self.cursor, PAGE_EVENTS, PAGE_BYTES).await?;
        Ok(self.take(page))
    }

    async fn changed(&mut self) -> Change<Shared> {
        let batch = match self.watch.changed().await {
            CallChange::Events(batch) => batch,
            CallChange::Wake => return Change::Look,
        };
        let last = batch.last().map_or((0, false), |event| (event.seq, event.body.is_last()));
        let items = self.accept(batch);
        match last {
            // Something between the cursor and this batch was missed.
            (seq, _) if seq > self.cursor && items.is_empty() => Change::Look,
            (seq, _) if seq > self.cursor => Change::Items(items, Rest::More),
            (seq, true) if seq == self.cursor => Change::Items(items, Rest::Nothing),
            _ => Change::Items(items, Rest::Later),
        }
    }

    fn encode(item: &Shared) -> Bytes {
        encode::numbered(&item.batch[item.index])
    }

    fn position(&self) -> u64 {
        self.cursor
    }

    async fn place(&mut self) -> Result<Option<Value>, NoQueue> {
        if !self.queued {
            return Err(NoQueue);
        }
        match self.state.store.queue_place(&self.context, self.call_id).await {
            Ok(Some(place)) if self.place != Some(place.position) => {
                self.place = Some(place.position);
                let at = place.estimated_start_at.map(domain::event::timestamp);
                Ok(Some(json!({"position": place.position, "estimated_start_at": at})))
            }
            Ok(Some(_)) | Err(_) => Ok(None),
            Ok(None) => {
                self.queued = false;
                Err(NoQueue)
            }
        }
    }
}
