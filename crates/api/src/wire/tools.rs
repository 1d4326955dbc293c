//! The catalogue on the wire.

use serde::Serialize;
use serde_json::Value;
use tools::Descriptor;
use utoipa::ToSchema;

use super::calls::Effect;

/// What a tool may touch.
#[derive(Debug, Clone, ToSchema)]
pub struct ToolPermissions {
    /// Files of the sandbox.
    pub files: bool,
    /// The network.
    pub network: bool,
    /// Processes of the sandbox.
    pub exec: bool,
    /// A human.
    pub human: bool,
    /// An outside provider.
    pub provider: bool,
}

/// Hints in the terms of the Model Context Protocol.
#[derive(Debug, Clone, ToSchema)]
pub struct ToolAnnotations {
    /// It changes nothing.
    pub read_only: bool,
    /// It may destroy what is there.
    pub destructive: bool,
    /// Doing it twice is doing it once.
    pub idempotent: bool,
    /// It reaches beyond the sandbox.
    pub open_world: bool,
}

/// One tool of the catalogue.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Tool)]
pub struct ToolView {
    /// Always `tool`.
    #[schema(pattern = "^tool$")]
    pub object: &'static str,
    /// Its own name.
    #[schema(value_type = String)]
    pub name: &'static str,
    /// Names of other systems that mean it.
    pub aliases: Vec<&'static str>,
    /// For people.
    pub title: &'static str,
    /// For models.
    pub description: &'static str,
    /// The toolkit that it belongs to.
    pub toolkit: &'static str,
    /// Rises when its behaviour or schema changes.
    pub version: &'static str,
    /// What running it twice would do.
    #[schema(value_type = Effect)]
    pub effect: domain::Effect,
    /// What it may touch.
    #[schema(value_type = ToolPermissions)]
    pub permissions: tools::Permissions,
    /// Hints for clients.
    #[schema(value_type = ToolAnnotations)]
    pub annotations: tools::Annotations,
    /// `timeout_ms` when the caller gives none.
    pub default_timeout_ms: u64,
    /// Largest `timeout_ms`.
    pub max_timeout_ms: u64,
    /// JSON Schema 2020-12 of its arguments.
    #[schema(value_type = Object)]
    pub input_schema: Value,
    /// JSON Schema 2020-12 of `result.structured`.
    #[schema(value_type = Object)]
    pub output_schema: Value,
}

impl From<&Descriptor> for ToolView {
    fn from(tool: &Descriptor) -> Self {
        Self {
            object: "tool",
            name: tool.name,
            aliases: tool.aliases.iter().map(|alias| alias.name).collect(),
            title: tool.title,
            description: tool.description,
            toolkit: tool.toolkit,
            version: tool.version,
            effect: tool.effect,
            permissions: tool.permissions,
            annotations: tool.annotations,
            default_timeout_ms: tool.default_timeout_ms,
            max_timeout_ms: tool.max_timeout_ms,
            input_schema: tool.input_schema.clone(),
            output_schema: tool.output_schema.clone(),
        }
    }
}

/// Native forms of tool definitions.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum ToolFormat {
    /// OpenAI's chat completions.
    Openai,
    /// Anthropic's messages.
    Anthropic,
    /// The Model Context Protocol.
    Mcp,
}

/// Tools that belong together.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Toolkit)]
pub struct ToolkitView {
    /// Always `toolkit`.
    #[schema(pattern = "^toolkit$")]
    pub object: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The own names of its tools.
    pub tools: Vec<&'static str>,
}

/// All tools that were asked for; there are no pages.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ToolList {
    /// Always `list`.
    #[schema(pattern = "^list$")]
    pub object: &'static str,
    /// `Tool` objects, or the native definitions of the asked format.
    #[schema(value_type = Vec<Object>)]
    pub data: Vec<Value>,
    /// Always false.
    pub has_more: bool,
    /// Always null.
    pub next_cursor: Option<String>,
}
