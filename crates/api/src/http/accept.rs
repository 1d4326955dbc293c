//! Which representation a client wants.

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;

/// The representation of something that can be streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Server-sent events.
    Events,
    /// JSON.
    Json,
    /// Nothing that we have.
    Neither,
}

/// What a client wants: the type that it gives the higher weight, JSON when it does not care.
pub(crate) fn form(headers: &HeaderMap) -> Form {
    let ranges = ranges(headers);
    if ranges.is_empty() {
        return Form::Json;
    }
    let weight = |exact: &str, wide: &str| weight(&ranges, exact, wide);
    let events = weight("text/event-stream", "text/*");
    let json = weight("application/json", "application/*");
    if events <= 0.0 && json <= 0.0 {
        Form::Neither
    } else if events > json || (events == json && events > 0.0 && ranges[0].0 == "text/event-stream") {
        Form::Events
    } else {
        Form::Json
    }
}

/// Whether a client takes server-sent events, where there is nothing else.
pub(crate) fn takes_events(headers: &HeaderMap) -> bool {
    let ranges = ranges(headers);
    ranges.is_empty() || weight(&ranges, "text/event-stream", "text/*") > 0.0
}

/// Who reads a page that is there in several forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// It wants JSON, or does not say.
    Program,
    /// It wants HTML.
    Browser,
    /// It wants text.
    Terminal,
}

/// Who reads: whoever names HTML or text and likes JSON no better.
pub(crate) fn reader(headers: &HeaderMap) -> Reader {
    let ranges = ranges(headers);
    let named = |wanted: &str| {
        ranges.iter().find(|(range, weight)| range == wanted && *weight > 0.0).map_or(0.0, |found| found.1)
    };
    let (json, html, text) = (named("application/json"), named("text/html"), named("text/plain"));
    if html > 0.0 && html >= text && html >= json {
        Reader::Browser
    } else if text > 0.0 && text >= json {
        Reader::Terminal
    } else {
        Reader::Program
    }
}

/// The representation of a list that can be exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rows {
    /// A page of JSON.
    Page,
    /// Everything, one JSON object a line.
    Lines,
    /// Nothing that we have.
    Neither,
}

/// What a client wants of a list: lines only when it names them and likes nothing better.
pub(crate) fn rows(headers: &HeaderMap) -> Rows {
    let ranges = ranges(headers);
    if ranges.is_empty() {
        return Rows::Page;
    }
    let page = weight(&ranges, "application/json", "application/*");
    let lines = ranges.iter().find(|(range, _)| range == "application/x-ndjson").map_or(0.0, |found| found.1);
    match (page > 0.0, lines > 0.0) {
        (_, true) if lines >= page => Rows::Lines,
        (true, _) => Rows::Page,
        (false, true) => Rows::Lines,
        (false, false) => Rows::Neither,
    }
}

fn ranges(headers: &HeaderMap) -> Vec<(String, f32)> {
    headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(range)
        .collect()
}

fn weight(ranges: &[(String, f32)], exact: &str, wide: &str) -> f32 {
    let of = |wanted: &str| ranges.iter().find(|(range, _)| range == wanted).map(|(_, weight)| *weight);
    of(exact).or_else(|| of(wide)).or_else(|| of("*/*")).unwrap_or(0.0)
}

fn range(text: &str) -> (String, f32) {
    let mut parts = text.split(';').map(str::trim);
    let range = parts.next().unwrap_or_default().to_ascii_lowercase();
    let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1.0), |q| q.parse().ok());
    (range, weight.unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wanted_form_is_given() {
        for (accept, wanted) in [
            ("", Form::Json),
            ("*/*", Form::Json),
            ("application/json", Form::Json),
            ("text/event-stream", Form::Events),
            ("text/event-stream, */*", Form::Events),
            ("application/json, text/event-stream", Form::Json),
            ("text/event-stream, application/json", Form::Events),
            ("application/json;q=0.5, text/event-stream", Form::Events),
            ("text/event-stream;q=0.1, application/json", Form::Json),
            ("text/*", Form::Events),
            ("image/png", Form::Neither),
            ("text/event-stream;q=0", Form::Neither),
        ] {
            let mut headers = HeaderMap::new();
            if !accept.is_empty() {
                headers.insert(ACCEPT, accept.parse().expect("a header"));
            }
            assert_eq!(form(&headers), wanted, "{accept}");
        }
    }

    #[test]
    fn events_are_given_to_who_takes_them() {
        for (accept, wanted) in [
            ("", true),
            ("*/*", true),
            ("text/event-stream", true),
            ("application/json, text/event-stream;q=0.1", true),
            ("application/json", false),
            ("application/json, text/event-stream;q=0", false),
            ("image/png", false),
        ] {
            let mut headers = HeaderMap::new();
            if !accept.is_empty() {
                headers.insert(ACCEPT, accept.parse().expect("a header"));
            }
            assert_eq!(takes_events(&headers), wanted, "{accept}");
        }
    }

    #[test]
    fn browsers_get_pages_and_programs_json() {
        for (accept, wanted) in [
            ("", Reader::Program),
            ("*/*", Reader::Program),
            ("application/json", Reader::Program),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Reader::Browser),
            ("text/html;q=0.1, application/json", Reader::Program),
            ("text/plain", Reader::Terminal),
            ("text/plain, text/html;q=0.5", Reader::Terminal),
        ] {
            let mut headers = HeaderMap::new();
            if !accept.is_empty() {
                headers.insert(ACCEPT, accept.parse().expect("a header"));
            }
            assert_eq!(reader(&headers), wanted, "{accept}");
        }
    }

    #[test]
    fn lines_are_given_to_who_names_them() {
        for (accept, wanted) in [
            ("", Rows::Page),
            ("*/*", Rows::Page),
            ("application/x-ndjson", Rows::Lines),
            ("application/x-ndjson, */*", Rows::Lines),
            ("application/x-ndjson;q=0.5, application/json", Rows::Page),
            ("text/html", Rows::Neither),
        ] {
            let mut headers = HeaderMap::new();
            if !accept.is_empty() {
                headers.insert(ACCEPT, accept.parse().expect("a header"));
            }
            assert_eq!(rows(&headers), wanted, "{accept}");
        }
    }
}
