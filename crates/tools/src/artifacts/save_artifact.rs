//! `save_artifact`: keeps a text or a file of the sandbox beyond the session.

use std::collections::BTreeMap;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use domain::{Code, Effect, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Kind, Shown, check_name};
use crate::alias::{Alias, Dialect, Preset, PresetValue, renamed};
use crate::port::{ArtifactDraft, ArtifactSource, SandboxPath};
use crate::{
    Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, clean, path,
};

pub(crate) struct SaveArtifact;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// Its name, such as report.md. The same name again makes the next version. Default: the name of the file at path.
    name: Option<String>,
    /// The text to keep. Give one of content, content_base64 and path.
    content: Option<String>,
    /// Bytes to keep, in base64.
    content_base64: Option<String>,
    /// A file of the sandbox to keep, under /workspace (relative paths start there) or /tmp.
    path: Option<String>,
    /// What it is.
    #[serde(default)]
    kind: Kind,
    /// Its media type, such as text/csv. Default: by the name's ending.
    #[schemars(regex(
        pattern = r"^[A-Za-z0-9!#$&^_.+-]{1,64}/[A-Za-z0-9!#$&^_.+-]{1,64}(; ?charset=[A-Za-z0-9_-]{1,32})?$"
    ))]
    mime_type: Option<String>,
    /// Labels: text to text, at most 16.
    #[serde(default)]
    metadata: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// What was saved.
    #[serde(flatten)]
    artifact: Shown,
}

const PRD: &[Preset] = &[preset("name", "prd.md"), preset("kind", "prd")];
const DESIGN: &[Preset] = &[preset("name", "design.md"), preset("kind", "design")];
const DELIVERY: &[Preset] = &[preset("name", "delivery_report.md"), preset("kind", "delivery_report")];
const IDEA: &[Preset] = &[preset("name", "idea.md"), preset("kind", "idea")];

const fn preset(field: &'static str, text: &'static str) -> Preset {
    Preset { field, value: PresetValue::Text(text), unless: &[] }
}

#[async_trait]
impl Tool for SaveArtifact {
    const SPEC: Spec = Spec {
        name: "save_artifact",
        aliases: &[
            Alias::new("SavePrdDocTool", Dialect::CoworkForge).presets(PRD),
            Alias::new("save_prd_doc", Dialect::CoworkForge).presets(PRD),
            Alias::new("SaveDesignDocTool", Dialect::CoworkForge).presets(DESIGN),
            Alias::new("save_design_doc", Dialect::CoworkForge).presets(DESIGN),
            Alias::new("SaveDeliveryReportTool", Dialect::CoworkForge).presets(DELIVERY),
            Alias::new("save_delivery_report", Dialect::CoworkForge).presets(DELIVERY),
            Alias::new("SaveIdeaTool", Dialect::CoworkForge).presets(IDEA),
            Alias::new("save_idea", Dialect::CoworkForge).presets(IDEA),
        ],
        arguments: &[renamed("file_path", "path"), renamed("filename", "name")],
        title: "Keep a file",
        description: "Keeps a text or a file of the sandbox beyond the session: a report, a chart, a result that somebody will want later. \
            Saving under the same name makes the next version; earlier ones stay. Give content (text), content_base64 (bytes) or path (a \
            file of the sandbox, at most 256 MiB). Returns the artifact's id.",
        toolkit: "artifacts",
        version: "1.0.0",
        effect: Effect::Idempotent,
        permissions: Permissions { files: true, network: false, exec: false, human: false, provider: false },
        annotations: Annotations {
            read_only: false,
            destructive: false,
            idempotent: false,
            open_world: false,
        },
        default_timeout_ms: 120_000,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    type Input = Input;
    type Output = Output;

    fn check(&self, input: &Input) -> Vec<ArgumentProblem> {
        let mut problems: Vec<_> = input.name.as_deref().and_then(check_name).into_iter().collect();
        problems.extend(input.path.as_deref().and_then(|given| path::check("path", given)));
        let given = [input.content.is_some(), input.content_base64.is_some(), input.path.is_some()];
        if given.into_iter().filter(|given| *given).count() != 1 {
            problems.push(ArgumentProblem::new("", "give one of content, content_base64 and path"));
        }
        if input.name.is_none() && input.path.is_none() {
            problems.push(ArgumentProblem::new("/name", "`name` is missing"));
        }
        if input.content_base64.as_ref().is_some_and(|text| STANDARD.decode(text).is_err()) {
            problems.push(ArgumentProblem::new("/content_base64", "is not base64"));
        }
        problems.extend(check_metadata(&input.metadata));
        problems
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let place = input.path.as_deref().map(|given| path::resolve("save_artifact", given)).transpose()?;
        let name = match (&input.name, &place) {
            (Some(name), _) => name.clone(),
            (None, Some(place)) => base_name(place)?,
            (None, None) => return Err(nothing()),
        };
        let content = match (input.content, input.content_base64, place) {
            (Some(text), _, _) => ArtifactSource::Bytes(Bytes::from(text)),
            (None, Some(text), _) => {
                ArtifactSource::Bytes(STANDARD.decode(text).map(Bytes::from).map_err(|_| nothing())?)
            }
            (None, None, Some(place)) => ArtifactSource::File(place),
            (None, None, None) => return Err(nothing()),
        };
        let mime_type = input.mime_type.unwrap_or_else(|| mime_of(&name).to_owned());
        let draft =
            ArtifactDraft { name, kind: input.kind.into(), mime_type, metadata: input.metadata, content };
        let artifact = cx.artifacts.save(draft).await?;
        let output = format!(
            "kept {} as {} (version {}, {} bytes)",
            clean::one_line(&artifact.name),
            artifact.id,
            artifact.version,
            artifact.size_bytes
        );
        Ok(ToolOutput::new(Output { artifact: Shown::from(&artifact) }, output))
    }
}

fn nothing() -> ToolError {
    ToolError::new(Code::InvalidArguments, "save_artifact: give one of content, content_base64 and path")
}

fn base_name(place: &SandboxPath) -> Result<String, ToolError> {
    let name = place.relative.rsplit('/').next().unwrap_or_default();
    match check_name(name) {
        None => Ok(name.to_owned()),
        Some(_) => Err(ToolError::new(
            Code::InvalidArguments,
            "save_artifact: give a name, as the path has none that is good",
        )),
    }
}

fn check_metadata(metadata: &BTreeMap<String, String>) -> Option<ArgumentProblem> {
    let (pairs, keys, values) =
        (limits::METADATA_PAIRS, limits::METADATA_KEY_CHARS, limits::METADATA_VALUE_CHARS);
    if metadata.len() > pairs {
        return Some(ArgumentProblem::new("/metadata", format!("must have at most {pairs} entries")));
    }
    let long = metadata.iter().find(|(key, value)| {
        key.is_empty() || key.chars().count() > keys || value.chars().count() > values
    })?;
    let message = format!("keys have 1 to {keys} characters, values at most {values}");
    Some(ArgumentProblem::new(crate::admission::pointer(&["metadata", long.0]), message))
}

/// The media type that a name's ending stands for.
pub(crate) fn mime_of(name: &str) -> &'static str {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase()).unwrap_or_default();
    match ending.as_str() {
        "txt" | "log" => "text/plain; charset=utf-8",
        "md" | "markdown" => "text/markdown; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "html" | "htm" => "text/html; charset=utf-8",
        "json" | "ipynb" => "application/json",
        "pdf" => "application/pdf",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        "zip" => "application/zip",
        "gz" | "tgz" => "application/gzip",
        "tar" => "application/x-tar",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        _ => "application/octet-stream",
    }
}
