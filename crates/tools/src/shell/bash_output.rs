//! `bash_output`: reads the log of a shell by offset, so that nothing is ever lost by reading.

use std::time::Duration;

use async_trait::async_trait;
use domain::event::OutputPiece;
use domain::{Effect, ShellId, StreamName, limits};
use regex::{Regex, RegexBuilder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alias::{Alias, ArgumentAlias, Dialect, Target, renamed};
use crate::clean::Stripper;
use crate::heavy::heavy;
use crate::log_lines::{LINE_BYTES, LogLines};
use crate::port::ShellOutput;
use crate::shell_log::{self, Chunk, State};
use crate::{Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, clean};

pub(crate) struct BashOutput;

/// Longest pattern of `filter`, in characters.
const FILTER_CHARS: usize = 1_000;
/// Most memory of a compiled `filter`, in bytes. Its time is linear in the output whatever it says.
const FILTER_BYTES: usize = 1 << 20;
/// Pause between looks at a log in which there is no whole line yet: what is written without ends of lines comes in many pieces.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// The shell, as bash returned it; or the name that it was started under, for the newest of that name.
    shell_id: String,
    /// Read from this byte of its log on: 0 for the start (default), then the next_offset of the last read.
    #[serde(default)]
    since_offset: u64,
    /// Regular expression (Rust syntax, linear time): only lines that match are returned, each once its end has been written, whole even
    /// when it began before since_offset (up to 64 KiB before).
    #[schemars(length(min = 1, max = FILTER_CHARS))]
    filter: Option<String>,
    /// When there is nothing new yet (with `filter`: no whole line), wait so long for it or the end.
    #[serde(default)]
    #[schemars(range(max = limits::WAIT_MS))]
    wait_ms: u64,
    /// Leave escape sequences and control characters of terminals out of `chunks`, and do not let `filter` see them; what is no
    /// UTF-8 becomes U+FFFD. Offsets are those of the log all the same.
    #[serde(default)]
    strip_ansi: bool,
    /// Most bytes of the log to read. Default, and at most: the call's output budget.
    #[schemars(range(min = 1, max = limits::OUTPUT_BUDGET_BYTES))]
    max_bytes: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    #[serde(flatten)]
    state: State,
    /// What was written, in order.
    chunks: Vec<Chunk>,
    /// Give it as since_offset to read on.
    next_offset: u64,
    /// There is more to read now.
    more: bool,
    /// Bytes since since_offset that are no longer kept.
    dropped_bytes: u64,
}

#[async_trait]
impl Tool for BashOutput {
    const SPEC: Spec = Spec {
        name: "bash_output",
        aliases: &[
            Alias::new("BashOutput", Dialect::OpenCowork),
            Alias::new("check_command_output", Dialect::OpenManus).arguments(&[
                renamed("session_name", "shell_id"),
                ArgumentAlias {
                    name: "kill_session",
                    target: Target::Convert(&[], |value| match value.as_bool() {
                        Some(false) => Ok(Vec::new()),
                        _ => Err("is not available here: use `kill_bash`".to_owned()),
                    }),
                },
            ]),
        ],
        arguments: &[
            renamed("bash_id", "shell_id"),
            renamed("shellId", "shell_id"),
            renamed("instanceId", "shell_id"),
        ],
        title: "Read a background command",
        description: "Reads what a background command (a shell that bash returned as shell_id) has written, and whether it \
            still runs. Reading takes nothing away: every read starts at `since_offset` (default 0, the start); give \
            the next_offset of the last result to get only what is new. `wait_ms` (at most 60000) waits for new output \
            instead of polling. `filter` returns only lines that match a regular expression.",
        toolkit: "shell",
        version: "1.1.0",
        effect: Effect::Pure,
        permissions: Permissions { files: false, network: false, exec: true, human: false, provider: false },
        annotations: Annotations { read_only: true, destructive: false, idempotent: true, open_world: false },
        default_timeout_ms: limits::TIMEOUT_MS_DEFAULT,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    const CHECKS_A_PATTERN: bool = true;
    type Input = Input;
    type Output = Output;

    fn check(&self, input: &Input) -> Vec<ArgumentProblem> {
        let mut problems: Vec<ArgumentProblem> = shell_log::check_name(&input.shell_id).into_iter().collect();
        if let Some(filter) = &input.filter
            && let Err(message) = compile(filter)
        {
            problems.push(ArgumentProblem::new("/filter", message));
        }
        if input.since_offset > i64::MAX as u64 {
            problems.push(ArgumentProblem::new("/since_offset", "is beyond any log"));
        }
        problems
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let found = shell_log::find(cx, &input.shell_id).await?;
        let id = found.id;
        let budget =
            input.max_bytes.map_or(cx.output_budget_bytes, |max| max.min(cx.output_budget_bytes)).max(1);
        let filter = heavy(cx.tenant_id, || input.filter.as_deref().map(compile).and_then(Result::ok)).await;
        let until = cx.waits.elapsed() + Duration::from_millis(input.wait_ms);
        // Where the log ended when it was last waited for.
        let mut waited_at = None;
        if input.wait_ms > 0 && found.next_offset <= input.since_offset {
            cx.shells.changed(id, input.since_offset, Duration::from_millis(input.wait_ms)).await?;
            waited_at = Some(found.next_offset);
        }
        let mut before = None;
        let looked = loop {
            let looked = look(cx, id, &input, filter.as_ref(), budget, &mut before).await?;
            let left = until.saturating_sub(cx.waits.elapsed());
            if looked.is_enough || left.is_zero() || waited_at == Some(looked.log_end) {
                break looked;
            }
            if waited_at.is_some() {
                cx.waits.time(left.min(BETWEEN_LOOKS)).await?;
            }
            let left = until.saturating_sub(cx.waits.elapsed());
            cx.shells.changed(id, looked.log_end, left).await?;
            waited_at = Some(looked.log_end);
        };
        let Looked { state, read, pieces, more, .. } = looked;
        let shaped = shell_log::shaped(&pieces, budget);
        let mut lines: Vec<String> = shell_log::dropped_line(&read).into_iter().collect();
        lines.push(if !shaped.text.is_empty() {
            shaped.text
        } else if input.filter.is_some() {
            "[no matching output]".to_owned()
        } else {
            "[no new output]".to_owned()
        });
        lines.push(state.line());
        let next_offset = read.next_offset;
        lines.push(if more {
            format!("[more to read: since_offset {next_offset}]")
        } else {
            format!("[next_offset {next_offset}]")
        });
        let output = Output {
            state,
            chunks: if input.strip_ansi { shell_log::texts(&pieces) } else { shell_log::chunks(&pieces) },
            next_offset,
            more,
            dropped_bytes: read.dropped_bytes,
        };
        Ok(ToolOutput::new(output, lines.join("\n")))
    }
}

fn compile(filter: &str) -> Result<Regex, String> {
    RegexBuilder::new(filter).size_limit(FILTER_BYTES).dfa_size_limit(FILTER_BYTES).build().map_err(|error| {
        match error {
            regex::Error::CompiledTooBig(_) => "is too large a regular expression".to_owned(),
            error => {
                let text = error.to_string();
                let last = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
                format!("is not a regular expression: {last}")
            }
        }
    })
}

/// What one look at the log has found.
struct Looked {
    state: State,
    read: ShellOutput,
    /// What of it is to be shown.
    pieces: Vec<OutputPiece>,
    /// There is more to read now.
    more: bool,
    log_end: u64,
    /// It is not worth waiting for more.
    is_enough: bool,
}

/// Looks. `before` keeps what was before the read from one look to the next.
async fn look(
    cx: &Context,
    id: ShellId,
    input: &Input,
    filter: Option<&Regex>,
    budget: u64,
    before: &mut Option<Vec<OutputPiece>>,
) -> Result<Looked, ToolError> {
    let mut read = cx.shells.output(id, input.since_offset, budget).await?;
    // Asked after the log, so that "ended and nothing more" is never said too early.
    let shell = cx.shells.get(id).await?;
    let state = State::of(&shell);
    let mut pieces = shell_log::joined(std::mem::take(&mut read.pieces));
    let more = read.next_offset < shell.next_offset;
    let is_over = !state.running && !more;
    if !is_over {
        let end = if filter.is_some() { last_line_end } else { last_character_end };
        read.next_offset = hold_back(&mut pieces, input, read.next_offset, end);
    }
    let mut is_enough = true;
    if let Some(filter) = filter {
        let known = match before.take() {
            Some(known) => known,
            None => log_before(cx, id, input, LINE_BYTES).await?,
        };
        let (end, found) = (read.next_offset, &pieces);
        let (lines, any) = heavy(cx.tenant_id, || matching(filter, input, &known, found, end, is_over)).await;
        is_enough = any || is_over || more;
        pieces = lines;
        // It stays as it is, once the log has come so far.
        *before = (shell.next_offset >= input.since_offset).then_some(known);
    } else if input.strip_ansi {
        let known = log_before(cx, id, input, 0).await?;
        pieces = stripped(&known, pieces, is_over.then_some(read.next_offset));
    }
    Ok(Looked { state, read, pieces, more, log_end: shell.next_offset, is_enough })
}

/// Leaves the end of a line or character that is still to come for the next read, when there is something before it.
fn hold_back(pieces: &mut Vec<OutputPiece>, input: &Input, next_offset: u64, end: fn(&[u8]) -> usize) -> u64 {
    let Some(last) = pieces.last_mut() else { return next_offset };
    let kept = end(&last.bytes);
    let kept_until = last.log_offset + kept as u64;
    let reaches_the_end = last.log_offset + last.bytes.len() as u64 == next_offset;
    if !reaches_the_end || kept_until <= input.since_offset {
        return next_offset;
    }
    last.bytes.truncate(kept);
    if last.bytes.is_empty() {
        pieces.pop();
    }
    kept_until
}

fn last_line_end(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1)
}

fn last_character_end(bytes: &[u8]) -> usize {
    clean::without_cut_end(bytes).0.len()
}

/// Where what has to be known of a log before a read begins: so many bytes, and what says what they begin with.
fn before_begins(input: &Input, bytes: u64) -> u64 {
    let sequence = if input.strip_ansi { clean::SEQUENCE_BYTES } else { 0 };
    input.since_offset.saturating_sub(bytes + sequence)
}

/// The log right before a read.
async fn log_before(
    cx: &Context,
    id: ShellId,
    input: &Input,
    bytes: u64,
) -> Result<Vec<OutputPiece>, ToolError> {
    let (mut at, mut pieces) = (before_begins(input, bytes), Vec::new());
    while at < input.since_offset {
        let read = cx.shells.output(id, at, input.since_offset - at).await?;
        for mut piece in read.pieces {
            let room = input.since_offset.saturating_sub(piece.log_offset);
            piece.bytes.truncate(usize::try_from(room).unwrap_or(usize::MAX));
            if !piece.bytes.is_empty() {
                pieces.push(piece);
            }
        }
        // One read gives only so many pieces, and a log may have nothing there.
        if read.next_offset <= at {
            break;
        }
        at = read.next_offset;
    }
    Ok(pieces)
}

/// The pieces with text in the place of bytes, without the sequences of terminals. What came before the first says what that
/// begins with, so that it does not matter where a log was cut to be read. `end` is where it ends for good.
fn stripped(before: &[OutputPiece], pieces: Vec<OutputPiece>, end: Option<u64>) -> Vec<OutputPiece> {
    let mut streams = [Stripper::new(), Stripper::new()];
    for piece in before {
        let _ = of(&mut streams, piece.stream).push(&piece.bytes);
    }
    let mut texts: Vec<OutputPiece> = pieces
        .into_iter()
        .map(|piece| {
            let text = of(&mut streams, piece.stream).push(&piece.bytes);
            OutputPiece { bytes: text.into_bytes(), ..piece }
        })
        .collect();
    if let Some(log_offset) = end {
        for (stream, left) in finished(streams) {
            if !left.is_empty() {
                texts.push(OutputPiece { log_offset, stream, offset: 0, bytes: left.into_bytes() });
            }
        }
    }
    texts
}

/// The lines that match, and whether there were whole lines at all.
fn matching(
    filter: &Regex,
    input: &Input,
    before: &[OutputPiece],
    pieces: &[OutputPiece],
    end: u64,
    is_over: bool,
) -> (Vec<OutputPiece>, bool) {
    let mut streams = input.strip_ansi.then(|| [Stripper::new(), Stripper::new()]);
    let mut lines = LogLines::new(filter, before_begins(input, LINE_BYTES), input.since_offset);
    for piece in before.iter().chain(pieces) {
        lines.push(piece, |part| match &mut streams {
            Some(streams) => of(streams, piece.stream).push(part).into_bytes(),
            None => part.to_vec(),
        });
    }
    if let Some(streams) = streams.filter(|_| is_over) {
        for (stream, left) in finished(streams) {
            lines.extend(stream, &left);
        }
    }
    lines.finish(end, is_over)
}

fn finished(streams: [Stripper; 2]) -> [(StreamName, String); 2] {
    let [stdout, stderr] = streams.map(Stripper::finish);
    [(StreamName::Stdout, stdout), (StreamName::Stderr, stderr)]
}

fn of(streams: &mut [Stripper; 2], stream: StreamName) -> &mut Stripper {
    let [stdout, stderr] = streams;
    match stream {
        StreamName::Stdout => stdout,
        StreamName::Stderr => stderr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::StreamName;

    fn piece(log_offset: u64, stream: StreamName, text: &str) -> OutputPiece {
        OutputPiece { log_offset, stream, offset: 0, bytes: text.as_bytes().to_vec() }
    }

    fn since(since_offset: u64) -> Input {
        Input {
            shell_id: String::new(),
            since_offset,
            filter: None,
            wait_ms: 0,
            strip_ansi: false,
            max_bytes: None,
        }
    }

    #[test]
    fn a_cut_line_waits_for_its_rest() {
        let mut pieces = vec![piece(10, StreamName::Stdout, "whole\ncu")];
        assert_eq!(hold_back(&mut pieces, &since(10), 18, last_line_end), 16);
        assert_eq!(pieces[0].bytes, b"whole\n");
    }

    #[test]
    fn a_cut_line_alone_is_given_so_that_reading_goes_on() {
        let mut pieces = vec![piece(10, StreamName::Stdout, "cu")];
        assert_eq!(hold_back(&mut pieces, &since(10), 12, last_line_end), 12);
        assert_eq!(pieces[0].bytes, b"cu");
    }

    #[test]
    fn a_cut_line_after_another_stream_waits() {
        let mut pieces = vec![piece(0, StreamName::Stderr, "oops\n"), piece(5, StreamName::Stdout, "cu")];
        assert_eq!(hold_back(&mut pieces, &since(0), 7, last_line_end), 5);
        assert_eq!(pieces.len(), 1);
    }

    #[test]
    fn a_cut_character_waits_for_its_rest() {
        let mut pieces = vec![piece(0, StreamName::Stdout, "a€")];
        pieces[0].bytes.pop();
        assert_eq!(hold_back(&mut pieces, &since(0), 3, last_character_end), 1);
        assert_eq!(pieces[0].bytes, b"a");
    }

    #[test]
    fn nothing_is_held_back_before_bytes_that_are_gone() {
        let mut pieces = vec![piece(0, StreamName::Stdout, "a\nb")];
        assert_eq!(hold_back(&mut pieces, &since(0), 900, last_line_end), 900);
    }

    #[test]
    fn bad_patterns_are_told() {
        assert!(compile("(").expect_err("unclosed").contains("unclosed group"));
        assert!(compile("(?:a{1000}){1000}").expect_err("too big").contains("too large"));
    }
}
