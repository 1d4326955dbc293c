//! What a form and its parts say of themselves: the boundary, and the names of files.

use super::malformed;
use crate::problem::Problem;

/// Longest boundary (RFC 2046).
const BOUNDARY_CHARS: usize = 70;

/// The boundary in a body's content type.
pub(super) fn boundary(content_type: &str) -> Option<String> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let parameters = parameters_of(parameters).ok()?;
    let boundary = &parameters.iter().find(|(name, _)| name == "boundary")?.1;
    let is_good = (1..=BOUNDARY_CHARS).contains(&boundary.len())
        && boundary.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
        && !boundary.ends_with(' ');
    is_good.then(|| boundary.clone())
}

/// The file's name in a part's headers.
pub(super) fn file_name(headers: &[u8]) -> Result<String, Problem> {
    let headers =
        std::str::from_utf8(headers).map_err(|_| malformed("the headers of a part are not UTF-8"))?;
    let mut name = None;
    for line in headers.split("\r\n") {
        if line.contains(|c: char| c.is_control() && c != '\t') {
            return Err(malformed("a header of a part has a control character in it"));
        }
        let (header, value) =
            line.split_once(':').ok_or_else(|| malformed("a header of a part has no name"))?;
        if header.is_empty() || header.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(malformed("a header of a part is malformed"));
        }
        let value = value.trim();
        match header.to_ascii_lowercase().as_str() {
            "content-disposition" if name.is_some() => {
                return Err(malformed("a part says twice what it is"));
            }
            "content-disposition" => name = Some(named(value)?),
            "content-transfer-encoding"
                if !["7bit", "8bit", "binary"].contains(&value.to_ascii_lowercase().as_str()) =>
            {
                return Err(malformed("the content of a part is in a coding; send it as it is"));
            }
            "content-encoding" => {
                return Err(malformed("the content of a part is in a coding; send it as it is"));
            }
            "content-type" if value.to_ascii_lowercase().starts_with("multipart/") => {
                return Err(malformed("a part has parts"));
            }
            _ => {}
        }
    }
    name.ok_or_else(|| malformed("a part does not say what it is"))
}

fn named(disposition: &str) -> Result<String, Problem> {
    let (kind, parameters) = disposition.split_once(';').unwrap_or((disposition, ""));
    if !kind.trim().eq_ignore_ascii_case("form-data") {
        return Err(malformed("a part is no field of a form"));
    }
    let mut parameters = parameters_of(parameters).map_err(malformed)?;
    if parameters.iter().any(|(name, _)| name.ends_with('*')) {
        return Err(malformed(
            "a part has a name in a coding of its own (`filename*`), which forms do not have",
        ));
    }
    let Some(at) = parameters.iter().position(|(name, _)| name == "filename") else {
        return Err(malformed("a part is no file: it has no `filename`"));
    };
    // What browsers and curl write for the characters that would end the name.
    let name = parameters.swap_remove(at).1;
    Ok(name.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n"))
}

/// `; a=b; c="d"`, each name once.
fn parameters_of(mut text: &str) -> Result<Vec<(String, String)>, &'static str> {
    const WRONG: &str = "a part's description is malformed";
    let mut parameters: Vec<(String, String)> = Vec::new();
    loop {
        text = text.trim_start_matches([' ', '\t', ';']);
        if text.is_empty() {
            return Ok(parameters);
        }
        let (name, rest) = text.split_once('=').ok_or(WRONG)?;
        let name = name.trim().to_ascii_lowercase();
        if name.is_empty() || name.contains(['"', ';', ' ']) {
            return Err(WRONG);
        }
        let value;
        (value, text) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_text(quoted).ok_or(WRONG)?,
            None => {
                let end = rest.find(';').unwrap_or(rest.len());
                (rest[..end].trim_end().to_owned(), &rest[end..])
            }
        };
        if !text.is_empty() && !text.starts_with([';', ' ', '\t']) {
            return Err(WRONG);
        }
        if parameters.iter().any(|(known, _)| *known == name) {
            return Err("a part's description says something twice");
        }
        parameters.push((name, value));
    }
}

/// What stands before the closing quote, and what behind it. Of backslashes only those before a quote are a sign: names may have others.
fn quoted_text(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let end = rest.find('"')?;
        match rest[..end].strip_suffix('\\') {
            Some(before) => {
                value.push_str(before);
                value.push('"');
                rest = &rest[end + 1..];
            }
            None => {
                value.push_str(&rest[..end]);
                return Some((value, &rest[end + 1..]));
            }
        }
    }
}
