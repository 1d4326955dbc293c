//! Framing: a pure encoder and an incremental decoder. They never allocate more than a frame may hold.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Number of a stream on one connection. Streams that the worker opens are odd, streams that the agent opens
/// are even; 0 is the connection itself.
pub type StreamId = u32;

/// Bytes before a frame's payload: length (u32, payload only), kind (u8), stream (u32), all big-endian.
pub const HEADER_BYTES: usize = 9;
/// Largest payload of a frame. A longer one is a protocol error and ends the connection.
pub const MAX_FRAME_BYTES: usize = 4 * 1024 * 1024;

/// What a frame's payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// First frame of the agent on stream 0; JSON [`crate::Hello`].
    Hello = 1,
    /// First frame of the worker on stream 0; JSON [`crate::Welcome`].
    Welcome = 2,
    /// Heartbeat, no payload; answered by nothing, as both sides send their own.
    Ping = 3,
    /// Opens a stream; JSON [`crate::Request`].
    Request = 4,
    /// A message on an open stream; JSON [`crate::Reply`].
    Reply = 5,
    /// Bytes on an open stream: offset (u64), channel (u8), bytes. Output from the agent, input from the worker.
    Data = 6,
    /// The receiver of output has made everything below this offset durable (u64).
    Ack = 7,
    /// The stream is over: no more frames of either side belong to it. No payload.
    Close = 8,
}

impl FrameKind {
    fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::Hello,
            2 => Self::Welcome,
            3 => Self::Ping,
            4 => Self::Request,
            5 => Self::Reply,
            6 => Self::Data,
            7 => Self::Ack,
            8 => Self::Close,
            _ => return None,
        })
    }
}

/// One decoded frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What the payload is.
    pub kind: FrameKind,
    /// The stream it belongs to.
    pub stream: StreamId,
    /// The payload, as it came.
    pub payload: Bytes,
}

/// Why bytes are not a frame. Either ends the connection: after it, nothing on the wire can be trusted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// The announced payload is larger than [`MAX_FRAME_BYTES`].
    #[error("a frame announces {0} bytes, more than a frame may have")]
    TooLong(usize),
    /// The kind is none that this build knows.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// A data frame is shorter than its own header, or names an unknown channel.
    #[error("a malformed data frame")]
    MalformedData,
}

/// Appends one frame to `out`.
///
/// # Panics
/// If the payload is longer than [`MAX_FRAME_BYTES`]: callers split before.
pub fn encode(out: &mut BytesMut, kind: FrameKind, stream: StreamId, payload: &[u8]) {
    assert!(payload.len() <= MAX_FRAME_BYTES, "payload of {} bytes", payload.len());
    out.reserve(HEADER_BYTES + payload.len());
    out.put_u32(payload.len() as u32);
    out.put_u8(kind as u8);
    out.put_u32(stream);
    out.put_slice(payload);
}

/// Bytes before the content of a data frame's payload: offset and channel.
const DATA_HEADER_BYTES: usize = 9;

/// Appends one data frame to `out`. `channel` is 0 for stdin, 1 for stdout, 2 for stderr.
///
/// # Panics
/// If the content does not fit a frame: callers split at [`crate::OUTPUT_FRAME_BYTES`].
pub fn encode_data(out: &mut BytesMut, stream: StreamId, offset: u64, channel: u8, content: &[u8]) {
    let length = DATA_HEADER_BYTES + content.len();
    assert!(length <= MAX_FRAME_BYTES, "content of {} bytes", content.len());
    out.reserve(HEADER_BYTES + length);
    out.put_u32(length as u32);
    out.put_u8(FrameKind::Data as u8);
    out.put_u32(stream);
    out.put_u64(offset);
    out.put_u8(channel);
    out.put_slice(content);
}

/// Splits the payload of a data frame into offset, channel (0 to 2) and content.
///
/// # Errors
/// [`DecodeError::MalformedData`] when it is too short or the channel is unknown.
pub fn decode_data(mut payload: Bytes) -> Result<(u64, u8, Bytes), DecodeError> {
    if payload.len() < DATA_HEADER_BYTES {
        return Err(DecodeError::MalformedData);
    }
    let offset = payload.get_u64();
    let channel = payload.get_u8();
    if channel > 2 {
        return Err(DecodeError::MalformedData);
    }
    Ok((offset, channel, payload))
}

/// Cuts frames out of a growing buffer.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// The buffer to read more bytes into.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next whole frame, or `None` until more bytes have come.
    ///
    /// # Errors
    /// When the bytes are not a frame; the connection is then to be closed.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, DecodeError> {
        if self.buffer.len() < HEADER_BYTES {
            return Ok(None);
        }
        let mut header = &self.buffer[..HEADER_BYTES];
        let length = header.get_u32() as usize;
        let kind = header.get_u8();
        let stream = header.get_u32();
        if length > MAX_FRAME_BYTES {
            return Err(DecodeError::TooLong(length));
        }
        let kind = FrameKind::from_u8(kind).ok_or(DecodeError::UnknownKind(kind))?;
        if self.buffer.len() < HEADER_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        let payload = self.buffer.split_to(length).freeze();
        Ok(Some(Frame { kind, stream, payload }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_survive_any_cut(
            frames in prop::collection::vec((1u8..=8, any::<u32>(), prop::collection::vec(any::<u8>(), 0..200)), 0..20),
            cuts in prop::collection::vec(1usize..40, 1..50),
        ) {
            let mut wire = BytesMut::new();
            for (kind, stream, payload) in &frames {
                encode(&mut wire, FrameKind::from_u8(*kind).expect("in range"), *stream, payload);
            }
            let mut decoder = Decoder::default();
            let mut decoded = Vec::new();
            let mut cuts = cuts.iter().cycle();
            let mut rest = &wire[..];
            while !rest.is_empty() {
                let cut = (*cuts.next().expect("cycles")).min(rest.len());
                decoder.buffer().extend_from_slice(&rest[..cut]);
                rest = &rest[cut..];
                while let Some(frame) = decoder.next_frame().expect("well formed") {
                    decoded.push((frame.kind as u8, frame.stream, frame.payload.to_vec()));
                }
            }
            prop_assert_eq!(decoded, frames);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut decoder = Decoder::default();
            decoder.buffer().extend_from_slice(&bytes);
            while let Ok(Some(frame)) = decoder.next_frame() {
                let _ = decode_data(frame.payload);
            }
        }
    }

    #[test]
    fn an_oversized_announcement_is_refused_before_it_is_buffered() {
        let mut decoder = Decoder::default();
        decoder.buffer().extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 6, 0, 0, 0, 1]);
        assert_eq!(decoder.next_frame(), Err(DecodeError::TooLong(0xffff_ffff)));
    }

    #[test]
    fn data_keeps_offset_channel_and_content() {
        let mut wire = BytesMut::new();
        encode_data(&mut wire, 7, 1 << 40, 2, b"oops\n");
        let mut decoder = Decoder::default();
        decoder.buffer().extend_from_slice(&wire);
        let frame = decoder.next_frame().expect("well formed").expect("whole");
        assert_eq!((frame.kind, frame.stream), (FrameKind::Data, 7));
        assert_eq!(decode_data(frame.payload), Ok((1 << 40, 2, Bytes::from_static(b"oops\n"))));
    }
}
