//! Lines of a call's output over HTTP: what is asked in the query, and the answer.

use domain::{Call, StreamName, TenantContext};
use tools::heavy::heavy;
use tools::output_search::{self, CONTEXT_LINES, Position, Query};

use super::extract::Params;
use crate::problem::Problem;
use crate::service::output;
use crate::state::ApiState;
use crate::wire::outputs::{OutputLine, OutputLines, OutputPosition};

/// Lines of an answer when nobody says.
const LINES_DEFAULT: usize = 200;
/// Most lines of an answer.
const LINES: usize = 1_000;
/// Most bytes of text of an answer.
const TEXT_BYTES: usize = 256 * 1024;

/// What the query asks of lines.
pub(super) struct Asked {
    /// Lines that match this; its text, and whether upper and lower case are the same.
    pattern: Option<(String, bool)>,
    /// The rest of the question.
    query: Query,
    from: Position,
}

/// `None` when it asks for bytes.
pub(super) fn asked(params: &mut Params) -> Result<Option<Asked>, Problem> {
    let (grep, lines) = (params.take("grep")?, params.take("lines")?);
    if grep.is_none() && lines.is_none() {
        return Ok(None);
    }
    let flag = "must be true or false";
    let ignore_case = params.parse::<bool>("ignore_case", flag)?.unwrap_or_default();
    let (first_line, last_line) = match lines {
        None => (1, u64::MAX),
        Some(text) => range(&text).ok_or_else(|| Problem::query("lines", "must be like 10-20, 10- or 10"))?,
    };
    let number = format!("must be a number from 0 to {CONTEXT_LINES}");
    let context = params.parse::<usize>("context", &number)?.unwrap_or_default();
    if context > CONTEXT_LINES {
        return Err(Problem::query("context", number));
    }
    let number = format!("must be a number from 1 to {LINES}");
    let max_lines = params.parse::<usize>("limit", &number)?.unwrap_or(LINES_DEFAULT);
    if !(1..=LINES).contains(&max_lines) {
        return Err(Problem::query("limit", number));
    }
    let query = Query { pattern: None, context, first_line, last_line, max_lines, max_bytes: TEXT_BYTES };
    Ok(Some(Asked { pattern: grep.map(|text| (text, ignore_case)), query, from: from(params)? }))
}

/// `10-20`, `10-` or `10`.
fn range(text: &str) -> Option<(u64, u64)> {
    let number = |text: &str| crate::service::events::plain_number(text).filter(|line| *line > 0);
    let (first, last) = match text.split_once('-') {
        None => (number(text)?, number(text)?),
        Some((first, "")) => (number(first)?, u64::MAX),
        Some((first, last)) => (number(first)?, number(last)?),
    };
    (first <= last).then_some((first, last))
}

fn from(params: &mut Params) -> Result<Position, Problem> {
    let expected = "must be the number that the answer before gave as `next`";
    let offset = params.parse::<u64>("from_offset", expected)?;
    let line = params.parse::<u64>("from_line", expected)?;
    match (offset, line) {
        (None, None) => Ok(Position::START),
        (Some(offset), Some(line)) if offset <= i64::MAX as u64 && line > 0 => Ok(Position { offset, line }),
        (Some(_), _) => Err(Problem::query("from_line", expected)),
        (None, Some(_)) => Err(Problem::query("from_offset", expected)),
    }
}

/// The answer.
pub(super) async fn answer(
    state: &ApiState,
    context: &TenantContext,
    call: &Call,
    stream: StreamName,
    asked: Asked,
    dropped_bytes: u64,
) -> Result<OutputLines, Problem> {
    let _permit = state.transfers.open_search(context.tenant_id()).await?;
    let Asked { pattern, mut query, from } = asked;
    let last_line = query.last_line;
    if let Some((text, ignore_case)) = pattern {
        let compiled = heavy(context.tenant_id(), || output_search::pattern(&text, ignore_case)).await;
        query.pattern = Some(compiled.map_err(|message| Problem::query("grep", message))?);
    }
    let lines = output::search(state, context, call, stream, query, from).await?;
    let over = (lines.ended && lines.at_end) || (!lines.found.full && lines.found.next.line > last_line);
    let next = OutputPosition { offset: lines.found.next.offset, line: lines.found.next.line };
    let found = lines.found.lines.into_iter().map(|line| OutputLine {
        line: line.position.line,
        offset: line.position.offset,
        text: line.text,
        is_match: line.is_match,
        cut: line.is_cut,
    });
    Ok(OutputLines {
        object: "output_lines",
        call_id: call.id,
        stream,
        lines: found.collect(),
        next: (!over).then_some(next),
        total_bytes: lines.total_bytes,
        dropped_bytes,
        ended: lines.ended,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_asked_for_by_number() {
        assert_eq!(range("10-20"), Some((10, 20)));
        assert_eq!(range("10-"), Some((10, u64::MAX)));
        assert_eq!(range("10"), Some((10, 10)));
        for bad in ["", "-", "0", "-5", "20-10", "1-2-3", "x", "1.5", "99999999999999999999"] {
            assert_eq!(range(bad), None, "{bad}");
        }
    }
}
