//! Server-sent events as bytes. Data is always one line of JSON, so nothing in it can end a field or an event.

use bytes::{BufMut, Bytes, BytesMut};
use domain::Event;
use serde_json::Value;

/// A numbered event of a call, as a reader of its stream gets it.
#[must_use]
pub fn numbered(event: &Event) -> Bytes {
    let data = event.to_wire(|bytes| data_encoding::BASE64.encode(bytes));
    frame(Some(event.seq), event.body.kind(), &data)
}

/// An event with a number that a client resumes from, or without one.
pub(crate) fn frame(id: Option<u64>, kind: &'static str, data: &Value) -> Bytes {
    match id {
        Some(id) => frame_with_id(&id.to_string(), kind, data),
        None => lines(BytesMut::with_capacity(128), kind, data),
    }
}

/// An event with an id of our own making that is no number.
pub(crate) fn frame_with_id(id: &str, kind: &'static str, data: &Value) -> Bytes {
    debug_assert!(!id.contains(['\r', '\n', '\0']), "ids are our own words");
    let mut bytes = BytesMut::with_capacity(128);
    bytes.put_slice(format!("id: {id}\n").as_bytes());
    lines(bytes, kind, data)
}

fn lines(mut bytes: BytesMut, kind: &'static str, data: &Value) -> Bytes {
    debug_assert!(!kind.contains(['\r', '\n', '\0']), "kinds are our own words");
    bytes.put_slice(b"event: ");
    bytes.put_slice(kind.as_bytes());
    bytes.put_slice(b"\ndata: ");
    let mut writer = bytes.writer();
    // JSON escapes every control character, so this is one line.
    if serde_json::to_writer(&mut writer, data).is_err() {
        tracing::error!(kind, "an event could not be written as JSON");
    }
    let mut bytes = writer.into_inner();
    bytes.put_slice(b"\n\n");
    bytes.freeze()
}

/// A comment: shows intermediaries and the client that the stream lives.
pub(crate) fn heartbeat() -> Bytes {
    Bytes::from_static(b": heartbeat\n\n")
}

/// How long the client is to wait before it connects again.
pub(crate) fn retry(milliseconds: u64) -> Bytes {
    format!("retry: {milliseconds}\n\n").into()
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use domain::event::OutputPiece;
    use domain::{CallId, EventBody, StreamName};
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    /// A parser by the letter of the HTML standard (9.2.6), kept separate from the encoder.
    fn parse(stream: &str) -> Vec<(String, String, String)> {
        let mut events = Vec::new();
        let (mut id, mut kind, mut data) = (String::new(), String::new(), Vec::new());
        for line in stream.replace("\r\n", "\n").replace('\r', "\n").split('\n') {
            if line.is_empty() {
                if !data.is_empty() {
                    events.push((id.clone(), std::mem::take(&mut kind), data.join("\n")));
                }
                kind.clear();
                data.clear();
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" if !value.contains('\0') => id = value.to_owned(),
                "event" => kind = value.to_owned(),
                "data" => data.push(value.to_owned()),
                _ => {}
            }
        }
        events
    }

    fn output(seq: u64, bytes: Vec<u8>) -> Event {
        let piece = OutputPiece { log_offset: 0, stream: StreamName::Stdout, offset: 7, bytes };
        Event {
            call_id: CallId::from_uuid(Uuid::from_u128(1)),
            seq,
            at: DateTime::UNIX_EPOCH,
            body: EventBody::Output(piece),
        }
    }

    fn bytes_of(data: &str) -> Vec<u8> {
        let data: Value = serde_json::from_str(data).expect("one line of JSON");
        match data["text"].as_str() {
            Some(text) => text.as_bytes().to_vec(),
            None => data_encoding::BASE64
                .decode(data["base64"].as_str().expect("text or base64").as_bytes())
                .expect("base64"),
        }
    }

    proptest! {
        #[test]
        fn any_bytes_arrive_as_they_were(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..8)) {
            let mut stream = String::new();
            for (index, piece) in pieces.iter().enumerate() {
                let frame = numbered(&output(index as u64 + 1, piece.clone()));
                stream.push_str(std::str::from_utf8(&frame).expect("text"));
                stream.push_str(": heartbeat\n\n");
            }
            let events = parse(&stream);
            prop_assert_eq!(events.len(), pieces.len());
            for (index, (piece, (id, kind, data))) in pieces.iter().zip(&events).enumerate() {
                prop_assert_eq!(id, &(index + 1).to_string());
                prop_assert_eq!(kind, "call.output");
                prop_assert_eq!(&bytes_of(data), piece);
            }
        }

        #[test]
        fn any_text_arrives_as_it_was(text in "(\\PC|\n|\r|\u{0}|\u{2028}|data: |id: 9\n|event: end\n\n){0,30}") {
            let frame = numbered(&output(3, text.clone().into_bytes()));
            let stream = std::str::from_utf8(&frame).expect("text");
            prop_assert_eq!(stream.matches('\n').count(), 4);
            let events = parse(stream);
            prop_assert_eq!(events.len(), 1);
            prop_assert_eq!((events[0].0.as_str(), events[0].1.as_str()), ("3", "call.output"));
            prop_assert_eq!(bytes_of(&events[0].2), text.into_bytes());
        }
    }

    #[test]
    fn what_is_not_numbered_leaves_the_last_number_alone() {
        let first = numbered(&output(4, b"x".to_vec()));
        let bookmark = frame(None, "bookmark", &serde_json::json!({"seq": 4}));
        let stream = format!(
            "{}{}{}",
            std::str::from_utf8(&retry(1_500)).expect("text"),
            std::str::from_utf8(&first).expect("text"),
            std::str::from_utf8(&bookmark).expect("text")
        );
        let events = parse(&stream);
        assert_eq!(events[1], ("4".to_owned(), "bookmark".to_owned(), "{\"seq\":4}".to_owned()));
    }
}
