//! `list_artifacts`: what this session has kept.

use std::fmt::Write as _;

use async_trait::async_trait;
use domain::{Effect, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Kind, Shown, check_name};
use crate::port::ArtifactQuery;
use crate::{Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, clean};

pub(crate) struct ListArtifacts;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// Only of this name.
    name: Option<String>,
    /// Only of this kind.
    kind: Option<Kind>,
    /// Every version rather than the newest of each name.
    #[serde(default)]
    all_versions: bool,
    /// Most artifacts.
    #[serde(default = "limit_default")]
    #[schemars(range(min = 1, max = 100))]
    limit: u32,
}

fn limit_default() -> u32 {
    50
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// Newest first.
    artifacts: Vec<Shown>,
    /// There are more.
    truncated: bool,
}

#[async_trait]
impl Tool for ListArtifacts {
    const SPEC: Spec = Spec {
        name: "list_artifacts",
        aliases: &[],
        arguments: &[],
        title: "List kept files",
        description: "Lists the artifacts of this session, newest first: what save_artifact kept, whole outputs that results cut short, \
            pictures. Only the newest version of each name unless all_versions is set. load_artifact reads one.",
        toolkit: "artifacts",
        version: "1.0.0",
        effect: Effect::Pure,
        permissions: Permissions { files: false, network: false, exec: false, human: false, provider: false },
        annotations: Annotations { read_only: true, destructive: false, idempotent: true, open_world: false },
        default_timeout_ms: 30_000,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    type Input = Input;
    type Output = Output;

    fn check(&self, input: &Input) -> Vec<ArgumentProblem> {
        input.name.as_deref().and_then(check_name).into_iter().collect()
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let query = ArtifactQuery {
            name: input.name,
            kind: input.kind.map(Into::into),
            latest_only: !input.all_versions,
            limit: input.limit.min(limits::PAGE_ITEMS),
        };
        let (artifacts, truncated) = cx.artifacts.list(query).await?;
        let mut output = String::new();
        for artifact in &artifacts {
            let _ = writeln!(
                output,
                "{}  {} (version {}, {}, {} bytes)",
                artifact.id,
                clean::one_line(&artifact.name),
                artifact.version,
                artifact.kind.as_str(),
                artifact.size_bytes
            );
        }
        if artifacts.is_empty() {
            output.push_str("[no artifacts]");
        } else if truncated {
            output.push_str("[there are more]");
        }
        let artifacts = artifacts.iter().map(Shown::from).collect();
        Ok(ToolOutput::new(Output { artifacts, truncated }, output.trim_end()))
    }
}
