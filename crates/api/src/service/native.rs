//! Tool calls and results in the blocks of model providers: read and written, nothing else. Pure.
//!
//! # Design notes
//!
//! A result is written for the model that reads it: a refusal, a denial and a failure are results too, marked as errors where the
//! format can, so that one bad block does not cost the model the results of the others. A call that has not ended is not an
//! error; its result says so and shows what it wrote until then. When the call was made by a source system's name, the text is the
//! answer in that system's form, which the model's prompt expects.

use domain::{Call, CallError, CallId, CallResult, CallStatus, ContentBlock};
use serde_json::{Map, Value, json};
use tools::dialect::{self, Ending};

use crate::problem::Problem;
use crate::service::shares;
use crate::wire::tool_results::NativeFormat;

/// A tool call as a provider's block has it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NativeCall {
    /// The block's id.
    pub(crate) id: String,
    /// The tool's name.
    pub(crate) tool: String,
    /// Its arguments, or what is wrong with their text.
    pub(crate) arguments: Result<Map<String, Value>, String>,
    form: Form,
}

/// Which block it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Chat,
    Responses,
    Anthropic,
}

/// What is wrong with a block: a pointer into it, and what to change.
pub(crate) type Misfit = (&'static str, &'static str);

/// A result before it is put into a block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NativeResult {
    text: String,
    /// Media type and base64.
    images: Vec<(String, String)>,
    is_error: bool,
}

/// Reads a block.
pub(crate) fn read(format: NativeFormat, block: &Value) -> Result<NativeCall, Misfit> {
    let kind = block.get("type").and_then(Value::as_str);
    match format {
        NativeFormat::Anthropic => {
            let (id, tool) = (text(block, "/id")?, text(block, "/name")?);
            if kind != Some("tool_use") {
                return Err(("/type", "must be `tool_use`"));
            }
            let arguments = match block.get("input") {
                Some(Value::Object(fields)) => fields.clone(),
                None | Some(Value::Null) => Map::new(),
                Some(_) => return Err(("/input", "must be an object")),
            };
            Ok(NativeCall { id, tool, arguments: Ok(arguments), form: Form::Anthropic })
        }
        NativeFormat::Openai if kind == Some("function_call") => Ok(NativeCall {
            id: text(block, "/call_id")?,
            tool: text(block, "/name")?,
            arguments: arguments(block.get("arguments")),
            form: Form::Responses,
        }),
        NativeFormat::Openai if matches!(kind, None | Some("function")) => Ok(NativeCall {
            id: text(block, "/id")?,
            tool: text(block, "/function/name")?,
            arguments: arguments(block.pointer("/function/arguments")),
            form: Form::Chat,
        }),
        NativeFormat::Openai => Err(("/type", "must be `function` or `function_call`")),
    }
}

fn text(block: &Value, pointer: &'static str) -> Result<String, Misfit> {
    let text = block.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    text.map(str::to_owned).ok_or((pointer, "is missing, or not text"))
}

/// OpenAI has arguments as text, which a model may get wrong.
fn arguments(value: Option<&Value>) -> Result<Map<String, Value>, String> {
    match value {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(fields)) => Ok(fields.clone()),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(Map::new()),
        Some(Value::String(text)) => match crate::json::parse(text.as_bytes()) {
            Ok(Value::Object(fields)) => Ok(fields),
            Ok(_) => Err("The arguments must be a JSON object.".to_owned()),
            Err(problem) => Err(format!("The arguments are not JSON: {}", problem.message)),
        },
        Some(_) => Err("The arguments must be a JSON object, as text.".to_owned()),
    }
}

/// The result of a call that has ended; of one that has not, with what it wrote so far.
pub(crate) fn of_call(call: &Call, so_far: &str) -> NativeResult {
    if !call.status.is_terminal() {
        return under_way(call, so_far);
    }
    let (result, error) = (call.result.as_ref(), call.error.as_ref());
    let is_error = call.status != CallStatus::Succeeded || result.is_some_and(|result| result.is_error);
    let ending = Ending { status: call.status, result, error };
    let requested = call.requested_tool.as_deref();
    let answer = requested.and_then(|name| dialect::answer(name, ending));
    let text = answer.map_or_else(|| own(result, error), |answer| theirs(answer.result));
    let images = result.map(images).unwrap_or_default();
    NativeResult { text, images, is_error }
}

/// The result of a block that was refused.
pub(crate) fn of_problem(problem: &Problem) -> NativeResult {
    let mut text = format!("Error ({}): {}", problem.code.as_str(), problem.detail);
    for error in problem.errors.iter().take(20) {
        let place = error.pointer.strip_prefix("/arguments").unwrap_or(&error.pointer);
        text.push_str(&format!("\n{place}: {}", error.message));
    }
    NativeResult { text, images: Vec::new(), is_error: true }
}

fn under_way(call: &Call, so_far: &str) -> NativeResult {
    let id = call.id;
    let state = match call.status {
        CallStatus::Running | CallStatus::Starting => "is still running",
        CallStatus::WaitingApproval => "waits for a human's approval",
        CallStatus::WaitingInput => "waits for a human's answer",
        _ => "waits for its turn and has not started",
    };
    let mut text =
        format!("[not ended: call {id} {state}. This is not its result; it goes on, and nothing is lost.]");
    if !so_far.is_empty() {
        text = format!("{so_far}\n{text}");
    }
    NativeResult { text, images: Vec::new(), is_error: false }
}

fn own(result: Option<&CallResult>, error: Option<&CallError>) -> String {
    let mut parts = Vec::new();
    if let Some(result) = result {
        parts.push(result.output.clone());
        parts.extend(result.system.as_ref().map(|remark| format!("[{remark}]")));
    }
    if let Some(error) = error {
        parts.push(format!("Error ({}): {}", error.code.as_str(), error.message));
        parts.extend(error.hint.clone());
    }
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

/// An image goes as a block of its own, where there are such.
fn theirs(mut answer: Value) -> String {
    if let Some(fields) = answer.as_object_mut() {
        fields.remove("base64_image");
    }
    answer.to_string()
}

fn images(result: &CallResult) -> Vec<(String, String)> {
    let images = result.content.iter().filter_map(|block| {
        let ContentBlock::Image { mime_type, data, .. } = block else { return None };
        data.clone().map(|data| (mime_type.clone(), data))
    });
    images.collect()
}

/// The same in at most so many bytes of JSON: pictures go first, then the middle of the text.
pub(crate) fn within(mut result: NativeResult, bytes: usize, call_id: Option<CallId>) -> NativeResult {
    // What the block around a picture takes.
    const AROUND: usize = 128;
    let picture = |(kind, data): &(String, String)| kind.len() + data.len() + AROUND;
    let mut pictures = result.images.iter().map(picture).sum::<usize>();
    let (text, mut left_out) = (shares::text_bytes(&result.text), 0);
    while text + pictures > bytes
        && let Some(last) = result.images.pop()
    {
        pictures -= picture(&last);
        left_out += 1;
    }
    if left_out > 0 {
        let note = format!("[{left_out} picture(s) are left out: {}]", shares::whole(call_id));
        result.text = if result.text.is_empty() { note } else { format!("{}\n{note}", result.text) };
    }
    result.text = shares::fit(result.text, bytes.saturating_sub(pictures), call_id);
    result
}

/// Writes the result of a block.
pub(crate) fn write(call: &NativeCall, result: NativeResult) -> Value {
    let NativeResult { text, images, is_error } = result;
    match call.form {
        Form::Anthropic => {
            let mut content = vec![json!({"type": "text", "text": text})];
            // An empty text block is refused there.
            content.retain(|block| block["text"] != "");
            content.extend(images.into_iter().map(|(media_type, data)| {
                json!({"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}})
            }));
            json!({"type": "tool_result", "tool_use_id": call.id, "content": content, "is_error": is_error})
        }
        Form::Responses if images.is_empty() => {
            json!({"type": "function_call_output", "call_id": call.id, "output": text})
        }
        Form::Responses => {
            let mut output = vec![json!({"type": "input_text", "text": text})];
            output.extend(images.into_iter().map(|(media_type, data)| {
                json!({"type": "input_image", "image_url": format!("data:{media_type};base64,{data}")})
            }));
            json!({"type": "function_call_output", "call_id": call.id, "output": output})
        }
        Form::Chat => {
            let mut text = text;
            if !images.is_empty() {
                // Tool messages of chat completions carry text only.
                let kinds: Vec<&str> = images.iter().map(|(kind, _)| kind.as_str()).collect();
                text.push_str(&format!("\n[{} image(s) not shown here: {}]", kinds.len(), kinds.join(", ")));
            }
            json!({"role": "tool", "tool_call_id": call.id, "content": text})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(arguments: &str) -> Value {
        json!({"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": arguments}})
    }

    #[test]
    fn blocks_of_all_forms_are_read() {
        let wanted = json!({"command": "ls"});
        for (format, block) in [
            (NativeFormat::Openai, chat(r#"{"command": "ls"}"#)),
            (
                NativeFormat::Openai,
                json!({"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "bash", "arguments": "{\"command\": \"ls\"}"}),
            ),
            (
                NativeFormat::Anthropic,
                json!({"type": "tool_use", "id": "call_1", "name": "bash", "input": {"command": "ls"}}),
            ),
        ] {
            let call = read(format, &block).expect("a block");
            assert_eq!((call.id.as_str(), call.tool.as_str()), ("call_1", "bash"), "{block}");
            assert_eq!(call.arguments.map(Value::Object), Ok(wanted.clone()), "{block}");
        }
    }

    #[test]
    fn what_is_no_block_is_told_by_its_place() {
        for (format, block, pointer) in [
            (NativeFormat::Anthropic, json!({"type": "text", "id": "a", "name": "b"}), "/type"),
            (NativeFormat::Anthropic, json!({"type": "tool_use", "name": "b"}), "/id"),
            (
                NativeFormat::Anthropic,
                json!({"type": "tool_use", "id": "a", "name": "b", "input": 1}),
                "/input",
            ),
            (NativeFormat::Openai, json!({"type": "message"}), "/type"),
            (NativeFormat::Openai, json!({"id": "a", "function": {}}), "/function/name"),
            (NativeFormat::Openai, json!(7), "/id"),
        ] {
            assert_eq!(read(format, &block).expect_err("no block").0, pointer, "{block}");
        }
    }

    #[test]
    fn arguments_that_are_no_json_are_the_blocks_own_error() {
        for bad in ["{", "[]", "7", "{\"a\": 1} x"] {
            let call = read(NativeFormat::Openai, &chat(bad)).expect("a block");
            assert!(call.arguments.is_err(), "{bad}");
        }
        assert_eq!(read(NativeFormat::Openai, &chat(" ")).expect("a block").arguments, Ok(Map::new()));
    }

    #[test]
    fn images_go_where_the_format_has_them() {
        let result = NativeResult {
            text: "drawn".to_owned(),
            images: vec![("image/png".to_owned(), "aGk=".to_owned())],
            is_error: false,
        };
        let of =
            |form| NativeCall { id: "1".to_owned(), tool: "t".to_owned(), arguments: Ok(Map::new()), form };
        let anthropic = write(&of(Form::Anthropic), result.clone());
        assert_eq!(
            anthropic["content"][1]["source"],
            json!({"type": "base64", "media_type": "image/png", "data": "aGk="})
        );
        let responses = write(&of(Form::Responses), result.clone());
        assert_eq!(responses["output"][1]["image_url"], "data:image/png;base64,aGk=");
        let chat = write(&of(Form::Chat), result);
        assert_eq!(chat["content"], "drawn\n[1 image(s) not shown here: image/png]");
    }
}
