//! The shapes on the wire: one struct per object of the API, with its documentation and schema, and the way there from `domain`.
//!
//! # Design notes
//!
//! Objects that the service also keeps as JSON (`result`, `error`, `ended`, `usage`, policies) are `domain` types, which know no
//! schema. They are embedded as they are and documented here by a twin of the same shape; a test compares the two field
//! by field, so that a change in `domain` cannot change the wire unseen.

use chrono::{DateTime, Utc};
use domain::limits;
use serde::{Serialize, Serializer};
use utoipa::ToSchema;
use utoipa::openapi::schema::{AdditionalProperties, Object, ObjectBuilder, SchemaType, Type};

pub mod artifacts;
pub mod audit;
pub mod calls;
pub mod contexts;
pub mod erasures;
pub mod events;
pub mod files;
pub mod hosts;
pub mod keys;
pub mod lists;
pub mod named_shells;
pub mod outputs;
pub mod policies;
pub mod problems;
pub mod results;
pub mod roles;
pub mod sessions;
pub mod shells;
pub mod stream_urls;
pub mod submissions;
pub mod tenants;
pub mod tool_results;
pub mod tools;
pub mod usage;
pub mod wheels;

/// RFC 3339, UTC, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, format = DateTime, examples("2026-03-01T09:30:00.123456Z"))]
pub struct Time(pub DateTime<Utc>);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&domain::event::timestamp(self.0))
    }
}

impl From<DateTime<Utc>> for Time {
    fn from(at: DateTime<Utc>) -> Self {
        Self(at)
    }
}

/// Schema of labels to set.
fn metadata() -> Object {
    map_of_text(limits::METADATA_PAIRS, limits::METADATA_VALUE_CHARS, "Labels.")
}

/// Schema of an environment.
fn env() -> Object {
    map_of_text(limits::ENV_PAIRS, limits::ENV_BYTES, "Variables: names of letters, digits and `_`.")
}

fn map_of_text(most: usize, value_chars: usize, description: &str) -> Object {
    let value = ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::String))
        .max_length(Some(value_chars))
        .build();
    ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::Object))
        .description(Some(description))
        .max_properties(Some(most))
        .additional_properties(Some(AdditionalProperties::RefOr(value.into())))
        .build()
}

#[cfg(test)]
mod tests;
