//! Forms with files (`multipart/form-data`, RFC 7578) as they come in: headers of a part, then its content piece by piece. Knows no files.
//!
//! # Design notes
//!
//! Written here and not taken from a crate: the one that `axum` offers reads on for as long as the client sends, into memory, and so do headers of a part that
//! never end. This one holds one piece of the body and one part's headers.
//! Whatever two readers could understand differently is refused: two names, a name in another coding, content in a coding, text before the first part.

mod headers;

use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use domain::Code;
use domain::limits::{FORM_FILES, FORM_HEADER_BYTES};
use futures_util::{Stream, StreamExt};

use crate::problem::Problem;
use crate::transfers::read_over;
use headers::{boundary, file_name};

type Pieces<'a> = Pin<Box<dyn Stream<Item = Result<Bytes, Problem>> + Send + 'a>>;

/// A form that is being read.
pub(crate) struct Form<'a> {
    pieces: Pieces<'a>,
    held: BytesMut,
    /// What ends a part's content.
    delimiter: Vec<u8>,
    parts: usize,
    at: At,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// In the content of a part; the first is what comes before all parts, and empty.
    Content,
    /// Behind a delimiter.
    Delimiter,
    /// Nothing more can be read.
    Broken,
}

/// A form that is not taken.
fn malformed(what: impl std::fmt::Display) -> Problem {
    Problem::new(Code::InvalidForm, format!("The form is not taken: {what}."))
}

impl<'a> Form<'a> {
    /// The form in a body of this content type.
    pub(crate) fn new(
        content_type: &str,
        pieces: impl Stream<Item = Result<Bytes, Problem>> + Send + 'a,
    ) -> Result<Self, Problem> {
        let boundary = boundary(content_type).ok_or_else(|| {
            let detail = "The body has to be a form with files: multipart/form-data with a boundary.";
            Problem::new(Code::UnsupportedMediaType, detail)
        })?;
        Ok(Self {
            pieces: Box::pin(pieces),
            // The first delimiter has no line before it.
            held: BytesMut::from(&b"\r\n"[..]),
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            parts: 0,
            at: At::Content,
        })
    }

    /// The name of the next part's file; what is left of the part before is read over. `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<String>, Problem> {
        let found = self.find_next().await;
        if found.is_err() {
            self.at = At::Broken;
        }
        found
    }

    async fn find_next(&mut self) -> Result<Option<String>, Problem> {
        while self.read().await?.is_some() {
            if self.parts == 0 {
                return Err(malformed("it does not begin with its boundary"));
            }
        }
        while self.held.len() < 2 {
            self.more().await?;
        }
        match &self.held.split_to(2)[..] {
            b"\r\n" => {}
            b"--" => return self.end().await.map(|()| None),
            _ => return Err(malformed("a boundary goes on after its end")),
        }
        self.parts += 1;
        if self.parts > FORM_FILES {
            let detail = format!("A form may have at most {FORM_FILES} files.");
            return Err(Problem::new(Code::LimitExceeded, detail));
        }
        // So far there is no end: a client that sends byte by byte is not to have all of it searched each time.
        let mut searched = 0;
        let headers = loop {
            if let Some(end) = self.held[searched..].windows(4).position(|four| four == b"\r\n\r\n") {
                break self.held.split_to(searched + end + 4);
            }
            searched = self.held.len().saturating_sub(3);
            if self.held.len() > FORM_HEADER_BYTES {
                return Err(malformed("the headers of a part are too long"));
            }
            self.more().await?;
        };
        if headers.len() > FORM_HEADER_BYTES {
            return Err(malformed("the headers of a part are too long"));
        }
        self.at = At::Content;
        file_name(&headers[..headers.len() - 4]).map(Some)
    }

    /// The next piece of the part's content; `None` behind the last.
    pub(crate) async fn read(&mut self) -> Result<Option<Bytes>, Problem> {
        loop {
            match self.at {
                At::Delimiter => return Ok(None),
                At::Broken => return Err(malformed("it is read no further")),
                At::Content => {}
            }
            match find(&self.held, &self.delimiter) {
                Some(0) => {
                    let _ = self.held.split_to(self.delimiter.len());
                    self.at = At::Delimiter;
                }
                Some(end) => return Ok(Some(self.held.split_to(end).freeze())),
                // The delimiter may begin in what is here.
                None if self.held.len() >= self.delimiter.len() => {
                    let whole = self.held.len() + 1 - self.delimiter.len();
                    return Ok(Some(self.held.split_to(whole).freeze()));
                }
                None => {
                    if let Err(problem) = self.more().await {
                        self.at = At::Broken;
                        return Err(problem);
                    }
                }
            }
        }
    }

    /// See [`read_over`].
    pub(crate) async fn read_over(&mut self) {
        read_over(self.pieces.as_mut()).await;
    }

    /// Whether nothing of it can be read any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.at == At::Broken
    }

    /// Behind the last delimiter there is at most the end of its line.
    async fn end(&mut self) -> Result<(), Problem> {
        while self.held.len() <= 2 {
            match self.pieces.next().await.transpose()? {
                Some(piece) => self.held.extend_from_slice(&piece),
                None if matches!(&self.held[..], b"" | b"\r\n") => return Ok(()),
                None => break,
            }
        }
        Err(malformed("something follows its end"))
    }

    async fn more(&mut self) -> Result<(), Problem> {
        match self.pieces.next().await.transpose()? {
            Some(piece) => self.held.extend_from_slice(&piece),
            None => return Err(malformed("it is cut short")),
        }
        Ok(())
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = text[from..].iter().position(|byte| *byte == wanted[0]) {
        if text[from + at..].starts_with(wanted) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use proptest::prelude::*;

    use super::*;

    const TYPE: &str = "multipart/form-data; boundary=XX";

    /// All parts of a body that comes in pieces of this size.
    async fn parts(body: &[u8], size: usize) -> Result<Vec<(String, Vec<u8>)>, Code> {
        let pieces: Vec<_> = body.chunks(size).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        let mut form = Form::new(TYPE, stream::iter(pieces)).map_err(|problem| problem.code)?;
        let mut parts = Vec::new();
        while let Some(name) = form.next().await.map_err(|problem| problem.code)? {
            let mut content = Vec::new();
            while let Some(piece) = form.read().await.map_err(|problem| problem.code)? {
                content.extend_from_slice(&piece);
            }
            parts.push((name, content));
        }
        Ok(parts)
    }

    fn part(disposition: &str, content: &[u8]) -> Vec<u8> {
        [b"--XX\r\nContent-Disposition: ", disposition.as_bytes(), b"\r\n\r\n", content, b"\r\n"].concat()
    }

    fn form(parts: &[Vec<u8>]) -> Vec<u8> {
        [parts.concat(), b"--XX--\r\n".to_vec()].concat()
    }

    #[tokio::test]
    async fn names_are_what_clients_mean() {
        for (written, name) in [
            ("form-data; name=\"f\"; filename=\"a.txt\"", "a.txt"),
            ("form-data; name=f; filename=a.txt", "a.txt"),
            ("form-data;filename=\"a b; c=d.txt\";name=\"f\"", "a b; c=d.txt"),
            ("form-data; name=\"f\"; filename=\"\\\"q\\\".txt\"", "\"q\".txt"),
            ("form-data; name=\"f\"; filename=\"%22q%22\\x\"", "\"q\"\\x"),
            ("form-data; name=\"f\"; filename=\"größe.txt\"", "größe.txt"),
        ] {
            let body = form(&[part(written, b"x")]);
            assert_eq!(parts(&body, 7).await, Ok(vec![(name.to_owned(), b"x".to_vec())]), "{written}");
        }
        assert_eq!(parts(b"--XX--", 1).await, Ok(Vec::new()));
    }

    #[tokio::test]
    async fn what_could_be_read_in_two_ways_is_refused() {
        let good = part("form-data; name=\"f\"; filename=\"a\"", b"x");
        let with = |header: &str| {
            let text =
                format!("--XX\r\nContent-Disposition: form-data; filename=\"a\"\r\n{header}\r\n\r\nx\r\n");
            form(&[text.into_bytes()])
        };
        for body in [
            form(&[part("form-data; name=\"f\"", b"x")]),
            form(&[part("form-data; filename=\"a\"; filename=\"b\"", b"x")]),
            form(&[part("form-data; filename=\"a\"; filename*=UTF-8''b", b"x")]),
            form(&[part("attachment; filename=\"a\"", b"x")]),
            form(&[part("form-data; filename=\"a", b"x")]),
            with("Content-Disposition: form-data; filename=\"b\""),
            with("Content-Transfer-Encoding: base64"),
            with("Content-Type: multipart/mixed; boundary=YY"),
            with(" folded"),
            with("no header"),
            good.clone(),
            good[..40].to_vec(),
            [b"hello\r\n".to_vec(), form(std::slice::from_ref(&good))].concat(),
            [form(std::slice::from_ref(&good)), b"more".to_vec()].concat(),
            form(&[b"--XX\r\n\r\nx\r\n".to_vec()]),
            b"--XXX\r\n".to_vec(),
            b"".to_vec(),
            [b"--XX\r\n".to_vec(), vec![b'a'; 1 << 20]].concat(),
        ] {
            let shown = String::from_utf8_lossy(&body[..body.len().min(90)]).into_owned();
            assert_eq!(parts(&body, 4096).await, Err(Code::InvalidForm), "{shown}");
        }
        for kind in [
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "text/plain; boundary=XX",
            "multipart/form-data; boundary=\"a\nb\"",
        ] {
            assert!(Form::new(kind, stream::empty()).is_err(), "{kind}");
        }
        let many = form(&vec![good; FORM_FILES + 1]);
        assert_eq!(parts(&many, 65_536).await, Err(Code::LimitExceeded));
    }

    proptest! {
        #[test]
        fn any_content_survives_any_cut(
            contents in prop::collection::vec(prop::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), Just(b'X'), any::<u8>()], 0..40), 1..4),
            size in 1_usize..50,
        ) {
            let wanted: Vec<_> = contents.into_iter().filter(|content| find(content, b"\r\n--XX").is_none()).collect();
            let written: Vec<_> = wanted.iter().map(|content| part("form-data; filename=\"a\"", content)).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let read = runtime.block_on(parts(&form(&written), size)).expect("a form");
            prop_assert_eq!(read.into_iter().map(|(_, content)| content).collect::<Vec<_>>(), wanted);
        }
    }
}
