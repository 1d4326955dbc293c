//! Items of an exchange as bytes of an HTTP/2 body: a kind, a length, a payload.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use domain::Code;
use domain::exchange::{ExchangeError, Item};
use domain::limits::{EXCHANGE_DATA_BYTES, EXCHANGE_MESSAGE_BYTES};

const HEADER_BYTES: usize = 5;
const DATA: u8 = 1;
const MESSAGE: u8 = 2;
const END: u8 = 3;
const FAILED: u8 = 4;

/// A body that is no sequence of items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other end sent what is no part of an exchange: {0}")]
pub(super) struct Malformed(&'static str);

/// An item as bytes.
pub(super) fn encode(item: &Item) -> Bytes {
    match item {
        Item::Data(bytes) => frame(DATA, bytes),
        Item::Message(message) => match message.to_string() {
            text if text.len() <= EXCHANGE_MESSAGE_BYTES => frame(MESSAGE, text.as_bytes()),
            _ => failed(&ExchangeError::new(Code::Internal, "A message was too large to be sent.")),
        },
        Item::End => frame(END, b""),
        Item::Failed(error) => failed(error),
    }
}

fn failed(error: &ExchangeError) -> Bytes {
    // Strings and maps of values always serialise; an empty text would be refused by the reader, as it should be.
    frame(FAILED, &serde_json::to_vec(error).unwrap_or_default())
}

fn frame(kind: u8, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEADER_BYTES + payload.len());
    frame.put_u8(kind);
    frame.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    frame.put_slice(payload);
    frame.freeze()
}

/// Items out of the pieces of a body.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole item, if there is one.
    pub(super) fn next(&mut self) -> Result<Option<Item>, Malformed> {
        let Some(header) = self.buffer.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let kind = header[0];
        let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
        let most = match kind {
            DATA => EXCHANGE_DATA_BYTES,
            MESSAGE | FAILED => EXCHANGE_MESSAGE_BYTES,
            END => 0,
            _ => return Err(Malformed("an item of an unknown kind")),
        };
        if length > most {
            return Err(Malformed("an item that is too large"));
        }
        if self.buffer.len() < HEADER_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        let payload = self.buffer.split_to(length).freeze();
        let item = match kind {
            DATA => Item::Data(payload),
            END => Item::End,
            MESSAGE => Item::Message(
                serde_json::from_slice(&payload).map_err(|_| Malformed("a message that is no JSON"))?,
            ),
            _ => Item::Failed(
                serde_json::from_slice(&payload)
                    .map_err(|_| Malformed("an error that is not one of ours"))?,
            ),
        };
        Ok(Some(item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items() -> Vec<Item> {
        vec![
            Item::message(&serde_json::json!({"rows": 24})),
            Item::Data(Bytes::from(vec![7; EXCHANGE_DATA_BYTES])),
            Item::Data(Bytes::new()),
            Item::Failed(ExchangeError::new(Code::SandboxLost, "gone").with("reason", "oom")),
            Item::End,
        ]
    }

    #[test]
    fn items_survive_any_cut() {
        let bytes: Vec<u8> = items().iter().flat_map(|item| encode(item).to_vec()).collect();
        for size in [1, 3, 7, 4_096, bytes.len()] {
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for piece in bytes.chunks(size) {
                decoder.push(piece);
                while let Some(item) = decoder.next().expect("well formed") {
                    seen.push(item);
                }
            }
            assert_eq!(seen, items(), "pieces of {size}");
        }
    }

    #[test]
    fn lies_about_lengths_and_kinds_are_refused() {
        for lie in [&[1, 0xff, 0, 0, 0][..], &[9, 0, 0, 0, 0], &[3, 0, 0, 0, 1, 0], &[2, 0, 0, 0, 1, b'{']] {
            let mut decoder = Decoder::default();
            decoder.push(lie);
            assert!(decoder.next().is_err(), "{lie:?}");
        }
    }
}
