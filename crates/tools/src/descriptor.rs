//! What the catalogue tells of a tool, in our own form and in the native forms of model providers and MCP.

use domain::Effect;
use serde::Serialize;
use serde_json::{Value, json};

use crate::alias::Alias;
use crate::{Annotations, Permissions, Spec};

/// Everything that the catalogue tells of a tool.
#[derive(Debug, Clone, Serialize)]
pub struct Descriptor {
    /// Its own name.
    pub name: &'static str,
    /// Names of the source systems that mean it.
    pub aliases: Vec<Alias>,
    /// For people.
    pub title: &'static str,
    /// For models.
    pub description: &'static str,
    /// The folder that it lives in.
    pub toolkit: &'static str,
    /// Rises when its behaviour or schema changes.
    pub version: &'static str,
    /// What running it twice would do.
    pub effect: Effect,
    /// What it may touch.
    pub permissions: Permissions,
    /// Hints for clients.
    pub annotations: Annotations,
    /// `timeout_ms` when the caller gives none.
    pub default_timeout_ms: u64,
    /// Largest `timeout_ms`.
    pub max_timeout_ms: u64,
    /// JSON Schema 2020-12 of its arguments.
    pub input_schema: Value,
    /// JSON Schema 2020-12 of `result.structured`.
    pub output_schema: Value,
}

impl Descriptor {
    pub(crate) fn new(spec: &Spec, input_schema: Value, output_schema: Value) -> Self {
        Self {
            name: spec.name,
            aliases: spec.aliases.to_vec(),
            title: spec.title,
            description: spec.description,
            toolkit: spec.toolkit,
            version: spec.version,
            effect: spec.effect,
            permissions: spec.permissions,
            annotations: spec.annotations,
            default_timeout_ms: spec.default_timeout_ms,
            max_timeout_ms: spec.max_timeout_ms,
            input_schema,
            output_schema,
        }
    }

    /// A tool definition of OpenAI's chat completions.
    #[must_use]
    pub fn to_openai(&self) -> Value {
        json!({
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.bare_input_schema(),
            },
        })
    }

    /// A tool definition of Anthropic's messages.
    #[must_use]
    pub fn to_anthropic(&self) -> Value {
        json!({
            "name": self.name,
            "description": self.description,
            "input_schema": self.bare_input_schema(),
        })
    }

    /// A tool definition of the Model Context Protocol.
    #[must_use]
    pub fn to_mcp(&self) -> Value {
        json!({
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.input_schema,
            "outputSchema": self.output_schema,
            "annotations": {
                "title": self.title,
                "readOnlyHint": self.annotations.read_only,
                "destructiveHint": self.annotations.destructive,
                "idempotentHint": self.annotations.idempotent,
                "openWorldHint": self.annotations.open_world,
            },
        })
    }

    /// Providers take a schema of the dialect that they know and refuse or ignore `$schema`.
    fn bare_input_schema(&self) -> Value {
        let mut schema = self.input_schema.clone();
        if let Some(object) = schema.as_object_mut() {
            object.remove("$schema");
        }
        schema
    }
}
