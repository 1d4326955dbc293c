//! The relay against a model of the agent: any chunking, any interleaving, any crash.

use bytes::Bytes;
use domain::StreamName;
use domain::event::OutputPiece;
use proptest::prelude::*;

use super::{HOLD_BYTES, Limits, Position, Relay, Resume};

const ROOMY: Limits = Limits { head_bytes: 1 << 30, tail_bytes: 1 << 16 };

/// A log as the store keeps it.
#[derive(Default, Clone)]
struct Stored {
    pieces: Vec<OutputPiece>,
}

impl Stored {
    fn end(&self) -> Position {
        let mut end = Position::default();
        for piece in &self.pieces {
            let length = piece.bytes.len() as u64;
            end.log = piece.log_offset + length;
            match piece.stream {
                StreamName::Stdout => end.stdout = piece.offset + length,
                StreamName::Stderr => end.stderr = piece.offset + length,
            }
        }
        end
    }

    /// How the streams stand at an offset of the log.
    fn at(&self, log: u64) -> Position {
        let Some(piece) = self.pieces.iter().find(|piece| piece.log_offset + piece.bytes.len() as u64 > log)
        else {
            return self.end();
        };
        let own = piece.offset + (log - piece.log_offset);
        match piece.stream {
            StreamName::Stdout => Position { log, stdout: own, stderr: log - own },
            StreamName::Stderr => Position { log, stdout: log - own, stderr: own },
        }
    }

    fn stream(&self, stream: StreamName) -> Vec<u8> {
        self.pieces
            .iter()
            .filter(|piece| piece.stream == stream)
            .flat_map(|piece| piece.bytes.clone())
            .collect()
    }

    fn add(&mut self, pieces: Vec<OutputPiece>) {
        self.pieces.extend(pieces);
    }

    fn assert_gapless(&self) {
        let mut at = Position::default();
        for piece in &self.pieces {
            assert_eq!((piece.log_offset, piece.offset), (at.log, at.of(piece.stream)));
            at.advance(piece.stream, piece.bytes.len() as u64);
        }
    }
}

#[derive(Debug, Clone)]
struct Write {
    stream: StreamName,
    bytes: Vec<u8>,
}

fn writes(bytes: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<Write>> {
    let write = (any::<bool>(), bytes).prop_map(|(out, bytes)| Write {
        stream: if out { StreamName::Stdout } else { StreamName::Stderr },
        bytes,
    });
    prop::collection::vec(write, 0..25)
}

/// Texts cut into pieces at any byte, so that characters are split between writes.
fn texts() -> impl Strategy<Value = Vec<Write>> {
    let cuts = prop::collection::vec((any::<bool>(), 1usize..6), 0..40);
    ("[aé€😀]{0,20}", "[bß漢🦀]{0,20}", cuts).prop_map(|(out, err, cuts)| {
        let mut rest = [out.into_bytes(), err.into_bytes()];
        let mut writes = Vec::new();
        let mut take = |stream: StreamName, length: usize, rest: &mut [Vec<u8>; 2]| {
            let source = &mut rest[super::index(stream)];
            let bytes: Vec<u8> = source.drain(..length.min(source.len())).collect();
            if !bytes.is_empty() {
                writes.push(Write { stream, bytes });
            }
        };
        for (out, length) in cuts {
            take(if out { StreamName::Stdout } else { StreamName::Stderr }, length, &mut rest);
        }
        take(StreamName::Stdout, usize::MAX, &mut rest);
        take(StreamName::Stderr, usize::MAX, &mut rest);
        writes
    })
}

fn of_stream(writes: &[Write], stream: StreamName) -> Vec<u8> {
    writes.iter().filter(|write| write.stream == stream).flat_map(|write| write.bytes.clone()).collect()
}

/// Sends the operation's log from an offset on, as the agent would.
fn send(relay: &mut Relay, writes: &[Write], from: u64, until: u64, mut after: impl FnMut(&mut Relay)) {
    let mut offset = 0;
    for write in writes {
        let end = offset + write.bytes.len() as u64;
        let (start, stop) = (offset.max(from), end.min(until));
        if start < stop {
            let part = &write.bytes[(start - offset) as usize..(stop - offset) as usize];
            relay.push(start, write.stream, Bytes::copy_from_slice(part)).expect("contiguous");
            after(relay);
        }
        offset = end;
    }
}

fn total(writes: &[Write]) -> u64 {
    writes.iter().map(|write| write.bytes.len() as u64).sum()
}

fn totals(writes: &[Write]) -> (u64, u64) {
    (of_stream(writes, StreamName::Stdout).len() as u64, of_stream(writes, StreamName::Stderr).len() as u64)
}

proptest! {
    #[test]
    fn any_output_is_stored_whole_and_in_order(
        writes in writes(prop::collection::vec(any::<u8>(), 0..40)),
        takes in prop::collection::vec(any::<bool>(), 25),
    ) {
        let mut relay = Relay::new(Position::default(), ROOMY);
        let mut stored = Stored::default();
        let mut takes = takes.into_iter().cycle();
        send(&mut relay, &writes, 0, u64::MAX, |relay| {
            if takes.next() == Some(true) {
                stored.add(relay.take());
            }
        });
        prop_assert_eq!(relay.finish(Some(totals(&writes))), 0);
        stored.add(relay.take());
        stored.assert_gapless();
        for stream in [StreamName::Stdout, StreamName::Stderr] {
            prop_assert_eq!(stored.stream(stream), of_stream(&writes, stream));
        }
        prop_assert_eq!(relay.end(), stored.end());
    }

    #[test]
    fn no_piece_of_a_text_splits_a_character(writes in texts(), takes in prop::collection::vec(any::<bool>(), 25)) {
        let mut relay = Relay::new(Position::default(), ROOMY);
        let mut stored = Stored::default();
        let mut takes = takes.into_iter().cycle();
        send(&mut relay, &writes, 0, u64::MAX, |relay| {
            if takes.next() == Some(true) {
                stored.add(relay.take());
            }
        });
        relay.finish(Some(totals(&writes)));
        stored.add(relay.take());
        for piece in &stored.pieces {
            prop_assert!(std::str::from_utf8(&piece.bytes).is_ok(), "{:?}", piece);
        }
    }

    #[test]
    fn a_worker_may_die_at_any_point(
        writes in texts(),
        first in any::<prop::sample::Index>(),
        commits in prop::collection::vec(0u8..3, 40),
    ) {
        // What one relay stores without a crash.
        let mut whole = Stored::default();
        let mut relay = Relay::new(Position::default(), ROOMY);
        send(&mut relay, &writes, 0, u64::MAX, |_| {});
        relay.finish(Some(totals(&writes)));
        whole.add(relay.take());

        // A worker that dies after some bytes, with some of them committed and some of those acknowledged.
        let until = first.index(total(&writes) as usize + 1) as u64;
        let mut stored = Stored::default();
        let mut acknowledged = 0;
        let mut relay = Relay::new(Position::default(), ROOMY);
        let mut commits = commits.into_iter().cycle();
        send(&mut relay, &writes, 0, until, |relay| {
            let commit = commits.next().unwrap_or(0);
            if commit > 0 {
                stored.add(relay.take());
            }
            if commit > 1 {
                relay.made_durable(stored.end().log);
                acknowledged = relay.acknowledged();
            }
        });

        let sent_from = acknowledged;
        let resume = Resume { stored: stored.end(), sent_from, before_sent: stored.at(sent_from) };
        let mut relay = Relay::resumed(Position::default(), ROOMY, resume);
        send(&mut relay, &writes, sent_from, u64::MAX, |_| {});
        relay.finish(Some(totals(&writes)));
        stored.add(relay.take());
        stored.assert_gapless();
        let bytes = |stored: &Stored| -> Vec<(StreamName, u8)> {
            stored.pieces.iter().flat_map(|piece| piece.bytes.iter().map(|byte| (piece.stream, *byte))).collect()
        };
        prop_assert_eq!(bytes(&stored), bytes(&whole));
    }

    #[test]
    fn everything_durable_is_acknowledged_when_nothing_is_held(writes in texts()) {
        let mut relay = Relay::new(Position::default(), ROOMY);
        send(&mut relay, &writes, 0, u64::MAX, |_| {});
        relay.take();
        relay.made_durable(u64::MAX);
        prop_assert_eq!(relay.acknowledged(), total(&writes));
    }

    #[test]
    fn a_repeated_frame_changes_nothing(writes in texts(), back in 0u64..10) {
        let mut relay = Relay::new(Position::default(), ROOMY);
        let until = total(&writes) / 2;
        send(&mut relay, &writes, 0, until, |_| {});
        // The connection ended; the agent sends from what was acknowledged, or from later.
        send(&mut relay, &writes, until.saturating_sub(back), u64::MAX, |_| {});
        relay.finish(Some(totals(&writes)));
        let stored = Stored { pieces: relay.take() };
        stored.assert_gapless();
        prop_assert_eq!(stored.stream(StreamName::Stdout), of_stream(&writes, StreamName::Stdout));
    }

    #[test]
    fn beyond_the_cap_head_and_tail_are_kept(
        writes in texts(), head_bytes in 0u64..60, tail_bytes in 8u64..40, crash in any::<prop::sample::Index>(),
    ) {
        let limits = Limits { head_bytes, tail_bytes };
        let until = crash.index(total(&writes) as usize + 1) as u64;
        let mut stored = Stored::default();
        let mut relay = Relay::new(Position::default(), limits);
        send(&mut relay, &writes, 0, until, |relay| {
            stored.add(relay.take());
            relay.made_durable(stored.end().log);
        });
        let sent_from = relay.acknowledged();
        let resume = Resume { stored: stored.end(), sent_from, before_sent: stored.at(sent_from) };
        let mut relay = Relay::resumed(Position::default(), limits, resume);
        send(&mut relay, &writes, sent_from, u64::MAX, |_| {});
        let dropped = relay.finish(Some(totals(&writes)));
        stored.add(relay.take());

        let kept: u64 = stored.pieces.iter().map(|piece| piece.bytes.len() as u64).sum();
        prop_assert_eq!(kept + dropped, total(&writes));
        let mut gaps = 0;
        let mut at = 0;
        for piece in &stored.pieces {
            gaps += u64::from(piece.log_offset != at);
            at = piece.log_offset + piece.bytes.len() as u64;
            let whole = of_stream(&writes, piece.stream);
            prop_assert_eq!(&whole[piece.offset as usize..][..piece.bytes.len()], &piece.bytes[..]);
            prop_assert!(std::str::from_utf8(&piece.bytes).is_ok());
        }
        prop_assert!(gaps <= 1);
        if dropped > 0 {
            prop_assert!(kept <= head_bytes + tail_bytes);
        }
    }
}

#[test]
fn a_character_that_never_ends_does_not_stop_the_other_stream() {
    let mut relay = Relay::new(Position::default(), ROOMY);
    relay.push(0, StreamName::Stdout, Bytes::from_static(b"\xc3")).expect("contiguous");
    let chunk = vec![b'x'; 16 * 1024];
    let mut offset = 1;
    while offset < 2 * HOLD_BYTES {
        relay.push(offset, StreamName::Stderr, chunk.clone().into()).expect("contiguous");
        offset += chunk.len() as u64;
        relay.take();
        relay.made_durable(u64::MAX);
    }
    assert_eq!(relay.acknowledged(), offset);
}

#[test]
fn a_hole_is_found() {
    let mut relay = Relay::new(Position::default(), ROOMY);
    relay.push(0, StreamName::Stdout, Bytes::from_static(b"a")).expect("contiguous");
    assert!(relay.push(2, StreamName::Stdout, Bytes::from_static(b"c")).is_err());
}

#[test]
fn pieces_are_no_larger_than_an_event() {
    let mut relay = Relay::new(Position::default(), ROOMY);
    let text = "é".repeat(100_000);
    relay.push(0, StreamName::Stdout, Bytes::from(text)).expect("contiguous");
    for piece in relay.take() {
        assert!(piece.bytes.len() <= domain::limits::OUTPUT_EVENT_BYTES);
        assert!(std::str::from_utf8(&piece.bytes).is_ok());
    }
}

#[test]
fn a_second_operation_goes_on_where_the_first_ended() {
    let mut first = Relay::new(Position::default(), ROOMY);
    first.push(0, StreamName::Stdout, Bytes::from_static(b"one")).expect("contiguous");
    first.finish(Some((3, 0)));
    let mut stored = Stored { pieces: first.take() };
    let mut second = Relay::new(first.end(), ROOMY);
    second.push(0, StreamName::Stderr, Bytes::from_static(b"two")).expect("contiguous");
    second.finish(Some((0, 3)));
    stored.add(second.take());
    second.made_durable(6);
    stored.assert_gapless();
    assert_eq!(second.acknowledged(), 3);
}

#[test]
fn a_resumed_operation_ends_where_it_ended_and_not_where_the_next_one_has_come_to() {
    // "one" of the first operation and "tw" of the second were stored when the worker died.
    let stored = Position { log: 5, stdout: 5, stderr: 0 };
    let resume = |sent_from, before_sent| Resume { stored, sent_from, before_sent };
    let mut first = Relay::resumed(Position::default(), ROOMY, resume(0, Position::default()));
    first.push(0, StreamName::Stdout, Bytes::from_static(b"one")).expect("contiguous");
    assert_eq!(first.finish(Some((3, 0))), 0);
    assert_eq!(first.take(), []);
    assert_eq!(first.end(), Position { log: 3, stdout: 3, stderr: 0 });
    let mut second = Relay::resumed(first.end(), ROOMY, resume(0, first.end()));
    second.push(0, StreamName::Stdout, Bytes::from_static(b"two")).expect("contiguous");
    second.finish(Some((3, 0)));
    let rest = second.take();
    assert_eq!(rest.len(), 1, "{rest:?}");
    assert_eq!((rest[0].log_offset, rest[0].offset, &rest[0].bytes[..]), (5, 5, &b"o"[..]));
}
