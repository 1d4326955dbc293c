//! Answers in the form of the source systems: what a call that was made by one of their names says when it has ended. Pure.
//!
//! # Design notes
//!
//! The answer is made when it is asked for and never stored: it says what the call's row says. It belongs to the call and not to its
//! result, because a call that failed or was denied has no result and yet an answer. OpenManus and Cowork Forge document one
//! form for all their tools; Open CoWork and MyCoder only say that a tool returns its typed output, so theirs is that, in
//! the spelling of their fields.

use domain::{CallError, CallResult, CallStatus, Code, ContentBlock};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::alias::{Alias, Dialect};
use crate::{catalog, clean};

/// How a call ended, as its row says.
#[derive(Debug, Clone, Copy)]
pub struct Ending<'a> {
    /// Where it is in its life.
    pub status: CallStatus,
    /// What the tool returned.
    pub result: Option<&'a CallResult>,
    /// Why it could not be done.
    pub error: Option<&'a CallError>,
}

/// An answer in the form of a source system.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// Whose form it is.
    pub system: Dialect,
    /// What its tool would have returned.
    pub result: Value,
}

/// The answer of a call that was made by this name. `None` while it has not ended, and when the name is our own.
#[must_use]
pub fn answer(requested: &str, ending: Ending<'_>) -> Option<Answer> {
    let alias = catalog::alias(requested).filter(|_| ending.status.is_terminal())?;
    let result = match alias.dialect {
        Dialect::Toolhost => return None,
        Dialect::OpenManus => open_manus(ending),
        Dialect::CoworkForge => cowork_forge(alias, ending),
        Dialect::OpenCowork => typed(ending, str::to_owned, alias),
        Dialect::Mycoder => typed(ending, camel_case, alias),
    };
    Some(Answer { system: alias.dialect, result })
}

/// `output, error, base64_image, system`.
fn open_manus(ending: Ending<'_>) -> Value {
    let result = ending.result;
    let stream = |name: &str| result.and_then(|result| result.structured.get(name)).and_then(Value::as_str);
    // A command's two streams are told apart there; what any other tool says is its output.
    let (output, error) = match (stream("stdout"), stream("stderr")) {
        (Some(stdout), Some(stderr)) => (shown(stdout), shown(stderr)),
        _ => (result.map(|result| result.output.clone()), None),
    };
    let error = error.filter(|text| !text.is_empty());
    let error = match (failure(ending), error) {
        (Some(failure), Some(error)) => Some(format!("{error}\n{failure}")),
        (failure, error) => failure.or(error).or_else(|| result.and_then(complaint)),
    };
    json!({
        "output": output.filter(|text| !text.is_empty()),
        "error": error,
        "base64_image": result.and_then(first_image),
        "system": result.and_then(|result| result.system.clone()),
    })
}

/// `status, message, data`.
fn cowork_forge(alias: &Alias, ending: Ending<'_>) -> Value {
    let status = match (ending.status, ending.error.map(|error| error.code)) {
        (CallStatus::Succeeded, _) => "success",
        (CallStatus::Denied, _)
        | (_, Some(Code::PathOutsideWorkspace | Code::InvalidPath | Code::PolicyDenied)) => "security_error",
        _ => "error",
    };
    let message = failure(ending)
        .or_else(|| ending.result.and_then(complaint))
        .unwrap_or_else(|| alias.success.unwrap_or("Success").to_owned());
    let mut answer = json!({"status": status, "message": message});
    if let Some(result) = ending.result {
        answer["data"] = renamed(&result.structured, &|name| name.to_owned(), alias);
    }
    answer
}

/// The typed output, with `error` when it could not be had.
fn typed(ending: Ending<'_>, spelling: impl Fn(&str) -> String, alias: &Alias) -> Value {
    let mut answer = match ending.result.map(|result| renamed(&result.structured, &spelling, alias)) {
        Some(Value::Object(fields)) => fields,
        Some(Value::Null) | None => Map::new(),
        Some(other) => Map::from_iter([("result".to_owned(), other)]),
    };
    if let Some(failure) = failure(ending) {
        answer.insert("error".to_owned(), failure.into());
    }
    Value::Object(answer)
}

/// Why it could not be done, with what to change.
fn failure(ending: Ending<'_>) -> Option<String> {
    let error = ending.error?;
    Some(match &error.hint {
        Some(hint) => format!("{} {hint}", error.message),
        None => error.message.clone(),
    })
}

/// What a tool that ran says of what it ran.
fn complaint(result: &CallResult) -> Option<String> {
    match (result.is_error, &result.signal, result.exit_code) {
        (false, _, _) => None,
        (true, Some(signal), _) => Some(format!("The command was ended by {signal}.")),
        (true, None, Some(code)) => Some(format!("The command ended with exit code {code}.")),
        (true, None, None) => Some("It ran, and what it ran went wrong.".to_owned()),
    }
}

fn shown(text: &str) -> Option<String> {
    Some(clean::screen(text)).filter(|text| !text.is_empty())
}

fn first_image(result: &CallResult) -> Option<String> {
    result.content.iter().find_map(|block| {
        let ContentBlock::Image { data, .. } = block else { return None };
        data.clone()
    })
}

/// Fields under their names there; fields of fields only in the spelling.
fn renamed(value: &Value, spelling: &impl Fn(&str) -> String, alias: &Alias) -> Value {
    let Value::Object(fields) = value else { return respelled(value, spelling) };
    let name = |own: &str| {
        let theirs = alias.results.iter().find(|(field, _)| *field == own);
        theirs.map_or_else(|| spelling(own), |(_, theirs)| (*theirs).to_owned())
    };
    Value::Object(fields.iter().map(|(own, field)| (name(own), respelled(field, spelling))).collect())
}

fn respelled(value: &Value, spelling: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::Array(items) => items.iter().map(|item| respelled(item, spelling)).collect(),
        Value::Object(fields) => Value::Object(
            fields.iter().map(|(name, field)| (spelling(name), respelled(field, spelling))).collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        camel.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    camel
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(structured: Value, exit_code: i32) -> CallResult {
        CallResult {
            is_error: exit_code != 0,
            output: "text".to_owned(),
            structured,
            exit_code: Some(exit_code),
            ..CallResult::default()
        }
    }

    fn succeeded(name: &str, result: &CallResult) -> Value {
        let ending = Ending { status: CallStatus::Succeeded, result: Some(result), error: None };
        answer(name, ending).expect("an answer").result
    }

    fn ended(name: &str, status: CallStatus, code: Code) -> Value {
        let error = CallError::new(code, "It could not be done.").hint("Do this.");
        answer(name, Ending { status, result: None, error: Some(&error) }).expect("an answer").result
    }

    #[test]
    fn open_manus_tells_the_streams_apart() {
        let command = json!({"stdout": "\u{1b}[31mout\u{1b}[0m\n", "stderr": "", "exit_code": 0});
        assert_eq!(
            succeeded("execute_command", &ran(command, 0)),
            json!({"output": "out\n", "error": null, "base64_image": null, "system": null})
        );
        let failed = json!({"stdout": "", "stderr": "no such thing\n", "exit_code": 2});
        assert_eq!(succeeded("execute_command", &ran(failed, 2))["error"], "no such thing\n");
        let silent = json!({"stdout": "", "stderr": "", "exit_code": 2});
        assert_eq!(
            succeeded("execute_command", &ran(silent, 2))["error"],
            "The command ended with exit code 2."
        );
    }

    #[test]
    fn open_manus_gets_the_first_image() {
        let mut result = ran(json!({"content": "x"}), 0);
        result.content.push(ContentBlock::Image {
            mime_type: "image/png".to_owned(),
            data: Some("aGk=".to_owned()),
            artifact_id: None,
        });
        let answer = succeeded("PythonExecute", &result);
        assert_eq!((&answer["base64_image"], &answer["output"]), (&json!("aGk="), &json!("text")));
    }

    #[test]
    fn cowork_forge_has_three_statuses() {
        let listing = json!({"files": ["a"], "directories": [], "total": 1});
        assert_eq!(
            succeeded("ListFilesTool", &ran(listing, 0)),
            json!({"status": "success", "message": "Successfully listed files",
                "data": {"files": ["a"], "directories": [], "total_count": 1}})
        );
        for (status, code, word) in [
            (CallStatus::Failed, Code::PathNotFound, "error"),
            (CallStatus::TimedOut, Code::Timeout, "error"),
            (CallStatus::Failed, Code::PathOutsideWorkspace, "security_error"),
            (CallStatus::Denied, Code::PolicyDenied, "security_error"),
        ] {
            let answer = ended("ReadFileTool", status, code);
            assert_eq!(answer, json!({"status": word, "message": "It could not be done. Do this."}));
        }
        let failed = json!({"stdout": "", "stderr": "no\n", "exit_code": 1});
        let answer = succeeded("RunCommandTool", &ran(failed, 1));
        assert_eq!((&answer["status"], &answer["data"]["exit_code"]), (&json!("success"), &json!(1)));
        assert_eq!(answer["message"], "The command ended with exit code 1.");
    }

    #[test]
    fn the_typed_output_is_spelled_as_there() {
        let command = json!({"exit_code": 0, "shell_id": "s", "chunks": [{"next_offset": 1}]});
        let result = ran(command.clone(), 0);
        assert_eq!(succeeded("Bash", &result), command);
        assert_eq!(
            succeeded("shellStart", &result),
            json!({"exitCode": 0, "shellId": "s", "chunks": [{"nextOffset": 1}]})
        );
        let failed = ended("readFile", CallStatus::Failed, Code::PathNotFound);
        assert_eq!(failed, json!({"error": "It could not be done. Do this."}));
    }

    #[test]
    fn our_own_names_and_what_still_runs_have_no_answer() {
        let result = ran(json!({}), 0);
        let ending = Ending { status: CallStatus::Succeeded, result: Some(&result), error: None };
        assert_eq!(answer("bash", ending), None);
        assert_eq!(answer("no_such_tool", ending), None);
        assert_eq!(answer("Bash", Ending { status: CallStatus::Running, result: None, error: None }), None);
    }
}
