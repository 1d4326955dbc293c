//! Where bytes may be cut without splitting a UTF-8 character.

/// Length of the sequence that a lead byte announces; `None` for a byte that leads nothing.
fn announced(lead: u8) -> Option<usize> {
    match lead {
        0xc2..=0xdf => Some(2),
        0xe0..=0xef => Some(3),
        0xf0..=0xf4 => Some(4),
        _ => None,
    }
}

/// Whether bytes continue no character, so that a start of them can be left out.
pub(super) fn is_continuation(byte: u8) -> bool {
    (0x80..=0xbf).contains(&byte)
}

/// How many bytes at the end are the first of a character whose last have not come (0 to 3).
pub(super) fn incomplete_end(bytes: &[u8]) -> usize {
    for length in 1..=bytes.len().min(3) {
        let start = bytes.len() - length;
        let Some(announced) = announced(bytes[start]) else { continue };
        // `error_len` is `None` exactly when more bytes could make it a character.
        let incomplete = announced > length
            && std::str::from_utf8(&bytes[start..]).is_err_and(|error| error.error_len().is_none());
        return if incomplete { length } else { 0 };
    }
    0
}

/// The longest start of at most `room` bytes that ends between characters.
pub(super) fn whole_prefix(bytes: &[u8], room: usize) -> usize {
    if bytes.len() <= room {
        return bytes.len();
    }
    for back in 1..=room.min(3) {
        let start = room - back;
        let Some(announced) = announced(bytes[start]) else { continue };
        let character = bytes.get(start..start + announced);
        let splits = announced > back && character.is_some_and(|bytes| std::str::from_utf8(bytes).is_ok());
        return if splits { start } else { room };
    }
    room
}

/// Whether bytes that come in pieces are text, wherever they are cut.
#[derive(Debug, Default)]
pub(crate) struct Utf8 {
    /// The start of a character whose end has not come.
    held: Vec<u8>,
    broken: bool,
}

impl Utf8 {
    /// These come next.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.broken {
            return;
        }
        let joined = [self.held.as_slice(), bytes].concat();
        let (whole, held) = joined.split_at(joined.len() - incomplete_end(&joined));
        self.broken = std::str::from_utf8(whole).is_err();
        self.held = held.to_vec();
    }

    /// Whether everything so far is text that ends with a whole character.
    pub(crate) fn is_whole(&self) -> bool {
        !self.broken && self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_text_exactly_when_the_whole_is(
            bytes in prop_oneof!["\\PC{0,40}".prop_map(String::into_bytes), prop::collection::vec(any::<u8>(), 0..12)],
            size in 1..5_usize,
        ) {
            let mut text = Utf8::default();
            bytes.chunks(size).for_each(|piece| text.push(piece));
            prop_assert_eq!(text.is_whole(), std::str::from_utf8(&bytes).is_ok());
        }

        #[test]
        fn any_cut_of_text_is_mended(text in "\\PC{0,40}", cut in any::<prop::sample::Index>()) {
            let bytes = text.as_bytes();
            let cut = cut.index(bytes.len() + 1);
            let held = incomplete_end(&bytes[..cut]);
            prop_assert!(std::str::from_utf8(&bytes[..cut - held]).is_ok());
            prop_assert!(std::str::from_utf8(&bytes[..whole_prefix(bytes, cut)]).is_ok());
        }

        #[test]
        fn bytes_that_are_no_text_are_not_held_for_long(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            prop_assert!(incomplete_end(&bytes) <= 3);
            let room = bytes.len() / 2;
            prop_assert!(room - whole_prefix(&bytes, room).min(room) <= 3);
        }
    }

    #[test]
    fn what_can_be_no_character_is_not_held() {
        assert_eq!(incomplete_end(b"a\xff"), 0);
        assert_eq!(incomplete_end(b"\xe0\x80"), 0);
        assert_eq!(incomplete_end(b"\xf0\x9f\x98"), 3);
        assert_eq!(incomplete_end(b"\x80\x80\x80"), 0);
    }
}
