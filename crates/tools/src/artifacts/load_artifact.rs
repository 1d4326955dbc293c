//! `load_artifact`: reads what was kept, as text or into a file of the sandbox.

use async_trait::async_trait;
use domain::{ArtifactId, Code, Effect, Truncation, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Shown, check_name};
use crate::alias::{Alias, Dialect, Preset, PresetValue, renamed};
use crate::port::{ArtifactRef, FileWrite, WriteMode};
use crate::{
    Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, clean, path,
};

pub(crate) struct LoadArtifact;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// Its id. Give this or name.
    #[schemars(regex(pattern = r"^art_[0-9a-z]{26}$"))]
    artifact_id: Option<String>,
    /// Its name in this session. Give this or artifact_id.
    name: Option<String>,
    /// Which version of the name. Default: the newest.
    #[schemars(range(min = 1))]
    version: Option<u32>,
    /// Write it to this file of the sandbox instead of returning its text; replaces what is there. At most 6 MiB.
    path: Option<String>,
    /// Return the text from this byte on.
    #[serde(default)]
    offset: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// What was loaded.
    #[serde(flatten)]
    artifact: Shown,
    /// Its text, or as much of it as the budget allows; null when it was written to a file.
    content: Option<String>,
    /// Byte to read on from, when content does not reach the end.
    next_offset: Option<u64>,
    /// The file it was written to, absolute.
    path: Option<String>,
}

const IDEA: &[Preset] =
    &[Preset { field: "name", value: PresetValue::Text("idea.md"), unless: &["artifact_id"] }];

#[async_trait]
impl Tool for LoadArtifact {
    const SPEC: Spec = Spec {
        name: "load_artifact",
        aliases: &[
            Alias::new("LoadIdeaTool", Dialect::CoworkForge).presets(IDEA),
            Alias::new("load_idea", Dialect::CoworkForge).presets(IDEA),
        ],
        arguments: &[renamed("id", "artifact_id"), renamed("file_path", "path")],
        title: "Read a kept file",
        description: "Reads an artifact of this session: what save_artifact kept, the whole of an output that a result cut short, a picture. \
            By name (the newest version unless version says otherwise) or by id. Text is returned from offset on as far as the output \
            budget goes; give path to get it as a file of the sandbox, which is the only way for bytes that are not text.",
        toolkit: "artifacts",
        version: "1.0.0",
        effect: Effect::Idempotent,
        permissions: Permissions { files: true, network: false, exec: false, human: false, provider: false },
        annotations: Annotations {
            read_only: false,
            destructive: false,
            idempotent: true,
            open_world: false,
        },
        default_timeout_ms: 60_000,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    type Input = Input;
    type Output = Output;

    fn check(&self, input: &Input) -> Vec<ArgumentProblem> {
        let mut problems: Vec<_> = input.name.as_deref().and_then(check_name).into_iter().collect();
        problems.extend(input.path.as_deref().and_then(|given| path::check("path", given)));
        if input.name.is_some() == input.artifact_id.is_some() {
            problems.push(ArgumentProblem::new("", "give one of name and artifact_id"));
        }
        if input.version.is_some() && input.name.is_none() {
            problems.push(ArgumentProblem::new("/version", "goes with name; an id is of one version"));
        }
        problems
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let which = match (&input.artifact_id, &input.name) {
            // What is no id is not there.
            (Some(id), _) => ArtifactRef::Id(id.parse::<ArtifactId>().map_err(|_| {
                ToolError::new(Code::ArtifactNotFound, "load_artifact: there is no such artifact")
            })?),
            (None, Some(name)) => ArtifactRef::Named { name: name.clone(), version: input.version },
            (None, None) => {
                return Err(ToolError::new(
                    Code::InvalidArguments,
                    "load_artifact: give name or artifact_id",
                ));
            }
        };
        let artifact = cx.artifacts.find(&which).await?;
        let shown = clean::one_line(&artifact.name);
        if let Some(given) = &input.path {
            let place = path::resolve("load_artifact", given)?;
            if artifact.size_bytes > limits::FILE_BYTES {
                let (size, most) = (artifact.size_bytes, limits::FILE_BYTES);
                let message = format!(
                    "load_artifact: {shown} has {size} bytes; at most {most} can be written to a file"
                );
                return Err(ToolError::new(Code::FileTooLarge, message));
            }
            let content = cx.artifacts.read(&artifact, 0, artifact.size_bytes).await?;
            let write = FileWrite {
                path: place.clone(),
                content,
                mode: WriteMode::Overwrite,
                permissions: None,
                expected_sha256: None,
            };
            cx.sandbox.write(write).await?;
            let path = path::absolute(&place);
            let output =
                format!("wrote {shown} (version {}) to {}", artifact.version, clean::one_line(&path));
            let structured = Output {
                artifact: Shown::from(&artifact),
                content: None,
                next_offset: None,
                path: Some(path),
            };
            return Ok(ToolOutput::new(structured, output));
        }
        if input.offset > artifact.size_bytes {
            let message = format!("load_artifact: {shown} has {} bytes", artifact.size_bytes);
            return Err(ToolError::new(Code::InvalidArguments, message));
        }
        let budget = cx.output_budget_bytes.max(4);
        let bytes = cx.artifacts.read(&artifact, input.offset, budget).await?;
        let (kept, skipped) =
            if input.offset == 0 { (&bytes[..], 0) } else { clean::without_cut_start(&bytes) };
        let read_to_end = input.offset + bytes.len() as u64 >= artifact.size_bytes;
        let kept = if read_to_end { kept } else { clean::without_cut_end(kept).0 };
        let Ok(text) = std::str::from_utf8(kept) else {
            return Err(ToolError::new(Code::BinaryFile, format!("load_artifact: {shown} is not text"))
                .hint("Give path to get it as a file of the sandbox."));
        };
        let next = input.offset + skipped + kept.len() as u64;
        let more = next < artifact.size_bytes;
        let mut output = clean::plain(text);
        if more {
            output.push_str(&format!(
                "\n[bytes {}-{next} of {}; read on with offset {next}]",
                input.offset, artifact.size_bytes
            ));
        }
        let truncated = more.then_some(Truncation {
            total_bytes: artifact.size_bytes,
            shown_bytes: kept.len() as u64,
            dropped_bytes: 0,
            artifact_id: Some(artifact.id),
        });
        let structured = Output {
            artifact: Shown::from(&artifact),
            content: Some(text.replace('\0', "\u{fffd}")),
            next_offset: more.then_some(next),
            path: None,
        };
        Ok(ToolOutput { truncated, ..ToolOutput::new(structured, output) })
    }
}
