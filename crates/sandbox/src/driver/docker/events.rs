//! What the engine tells unasked about containers of ours.

use std::sync::Arc;

use bollard::query_parameters::EventsOptions;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};

use super::engine::{self, Engine, filters};
use super::labels;
use crate::EngineError;
use crate::driver::{ContainerEvent, ContainerEventKind};

pub(super) fn stream(
    engine: Arc<Engine>,
    selector: Vec<String>,
) -> BoxStream<'static, Result<ContainerEvent, EngineError>> {
    stream::once(async move {
        let limit = engine::ASK;
        let docker = tokio::time::timeout(limit, engine.docker())
            .await
            .unwrap_or(Err(EngineError::TimedOut { operation: "events", limit }))?
            .clone();
        let mut filters = filters(selector);
        filters.insert("type".to_owned(), vec!["container".to_owned()]);
        let options = EventsOptions { filters: Some(filters), ..EventsOptions::default() };
        Ok(docker.events(Some(options)).map_err(|error| engine::map("events", error)))
    })
    .try_flatten()
    .try_filter_map(|message| async move { Ok(event(&message)) })
    .boxed()
}

fn event(message: &bollard::models::EventMessage) -> Option<ContainerEvent> {
    let kind = match message.action.as_deref()? {
        "kill" => ContainerEventKind::Killed,
        "oom" => ContainerEventKind::Oom,
        "die" => ContainerEventKind::Died,
        "destroy" => ContainerEventKind::Removed,
        _ => return None,
    };
    let attributes = message.actor.as_ref()?.attributes.as_ref()?;
    Some(ContainerEvent { sandbox_id: attributes.get(labels::SANDBOX)?.parse().ok()?, kind })
}
