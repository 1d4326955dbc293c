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
    let ranges: Vec<(String, f32)> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(range)
        .collect();
    if ranges.is_empty() {
        return Form::Json;
    }
    let weight = |exact: &str, wide: &str| {
        let of = |wanted: &str| ranges.iter().find(|(range, _)| range == wanted).map(|(_, weight)| *weight);
        of(exact).or_else(|| of(wide)).or_else(|| of("*/*")).unwrap_or(0.0)
    };
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
}
