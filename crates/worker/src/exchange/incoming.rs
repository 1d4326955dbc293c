//! An archive as it comes in: so many bytes of it at a time, never more than one item ahead.

use bytes::{Bytes, BytesMut};
use domain::Code;
use domain::exchange::{ExchangeError, Item, Piece};
use tokio::sync::mpsc;

/// Zeros behind an archive that are read over: writers fill up to whole records.
const TRAILING_BYTES: usize = 1024 * 1024;

/// See the module.
pub(super) struct Incoming<'a> {
    input: &'a mut mpsc::Receiver<Item>,
    held: BytesMut,
}

/// An archive that is not taken.
pub(super) fn malformed(what: impl Into<String>) -> ExchangeError {
    ExchangeError::new(Code::InvalidArchive, format!("The archive is not taken: {}.", what.into()))
}

impl<'a> Incoming<'a> {
    pub(super) fn new(input: &'a mut mpsc::Receiver<Item>) -> Self {
        Self { input, held: BytesMut::new() }
    }

    /// Exactly so many bytes.
    pub(super) async fn take(&mut self, bytes: usize) -> Result<Bytes, ExchangeError> {
        while self.held.len() < bytes {
            self.more().await?;
        }
        Ok(self.held.split_to(bytes).freeze())
    }

    /// What is there, at most so many bytes and at least one.
    pub(super) async fn some(&mut self, most: u64) -> Result<Bytes, ExchangeError> {
        while self.held.is_empty() {
            self.more().await?;
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(self.held.len());
        Ok(self.held.split_to(most).freeze())
    }

    /// Behind the first block of zeros there are only more of them.
    pub(super) async fn end_of_archive(&mut self) -> Result<(), ExchangeError> {
        let mut read = 0;
        loop {
            if self.held.iter().any(|byte| *byte != 0) {
                return Err(malformed("something follows its end"));
            }
            read += self.held.len();
            self.held.clear();
            if read > TRAILING_BYTES {
                return Err(malformed("too much follows its end"));
            }
            match self.next().await? {
                Some(bytes) => self.held.extend_from_slice(&bytes),
                None => return Ok(()),
            }
        }
    }

    async fn more(&mut self) -> Result<(), ExchangeError> {
        let bytes = self.next().await?.ok_or_else(|| malformed("it is cut short"))?;
        self.held.extend_from_slice(&bytes);
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ExchangeError> {
        match Item::step(self.input.recv().await)? {
            Some(Piece::Data(bytes)) => Ok(Some(bytes)),
            Some(Piece::Message(_)) => Err(ExchangeError::new(Code::Internal, "Only bytes belong here.")),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_come_in_any_pieces_and_end_in_zeros() {
        let (to, mut input) = mpsc::channel(8);
        for piece in [&b"ab"[..], b"cdef", b"\0\0"] {
            to.send(Item::Data(Bytes::from_static(piece))).await.expect("room");
        }
        to.send(Item::End).await.expect("room");
        let mut incoming = Incoming::new(&mut input);
        assert_eq!(incoming.take(3).await, Ok(Bytes::from_static(b"abc")));
        assert_eq!(incoming.some(2).await, Ok(Bytes::from_static(b"de")));
        assert_eq!(incoming.some(9).await, Ok(Bytes::from_static(b"f")));
        assert_eq!(incoming.end_of_archive().await, Ok(()));
    }

    #[tokio::test]
    async fn what_ends_early_is_no_archive_and_what_breaks_off_is_something_else() {
        let (to, mut input) = mpsc::channel(8);
        to.send(Item::End).await.expect("room");
        let code = Incoming::new(&mut input).take(1).await.map_err(|error| error.code);
        assert_eq!(code, Err(Code::InvalidArchive));
        drop(to);
        let code = Incoming::new(&mut input).take(1).await.map_err(|error| error.code);
        assert_eq!(code, Err(Code::WorkerUnavailable));
    }
}
