//! A WebSocket client for terminals.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message};

/// Longest wait for anything; a test that meets it has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// An attached terminal.
#[derive(Debug)]
pub struct Terminal {
    socket: WebSocketStream<TcpStream>,
    /// Everything that was written, as text.
    pub text: String,
    /// The offset to read on from.
    pub next_offset: u64,
}

impl Terminal {
    /// Attaches. `path` begins with a slash; without a key it has a token.
    ///
    /// # Errors
    /// When it is refused; the message has the status and the body.
    pub async fn attach(base: &str, path: &str, key: Option<&str>) -> Result<Self> {
        let host = base.strip_prefix("http://").context("an address")?;
        let mut request = format!("ws://{host}{path}").into_client_request()?;
        if let Some(key) = key {
            request.headers_mut().insert("authorization", format!("Bearer {key}").parse()?);
        }
        let stream = TcpStream::connect(host).await?;
        match timeout(PATIENCE, tokio_tungstenite::client_async(request, stream)).await? {
            Ok((socket, _)) => Ok(Self { socket, text: String::new(), next_offset: 0 }),
            Err(tungstenite::Error::Http(response)) => {
                let body = response.body().as_deref().unwrap_or_default();
                bail!("{} {}", response.status().as_u16(), String::from_utf8_lossy(body))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Says something.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn say(&mut self, message: &Value) -> Result<()> {
        Ok(self.socket.send(Message::text(message.to_string())).await?)
    }

    /// Types bytes, as they stand.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn type_in(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.socket.send(Message::binary(bytes.to_vec())).await?)
    }

    /// The next message. Output is gathered in [`Self::text`] as well, and checked to follow on what was there.
    ///
    /// # Errors
    /// When the connection ends, or nothing comes.
    pub async fn next(&mut self) -> Result<Value> {
        loop {
            let message = timeout(PATIENCE, self.socket.next()).await.context("nothing comes")?;
            let said: Value = match message.context("the connection is closed")?? {
                Message::Text(text) => serde_json::from_str(text.as_str())?,
                Message::Close(frame) => bail!("closed: {frame:?}"),
                Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
            };
            match said["type"].as_str() {
                Some("attached") => self.next_offset = said["resumed_from"].as_u64().context("an offset")?,
                Some("output") => {
                    ensure!(said["offset"] == self.next_offset, "a gap at {}: {said}", self.next_offset);
                    self.next_offset = said["next_offset"].as_u64().context("an offset")?;
                    self.text.push_str(said["text"].as_str().unwrap_or("\u{fffd}"));
                }
                _ => {}
            }
            return Ok(said);
        }
    }

    /// Reads until what was written contains this.
    ///
    /// # Errors
    /// When it does not come.
    pub async fn until(&mut self, text: &str) -> Result<()> {
        while !self.text.contains(text) {
            self.next().await.with_context(|| format!("waiting for {text:?}; saw {:?}", self.text))?;
        }
        Ok(())
    }

    /// Reads until a message of this kind.
    ///
    /// # Errors
    /// When it does not come.
    pub async fn until_kind(&mut self, kind: &str) -> Result<Value> {
        loop {
            let said = self.next().await?;
            if said["type"] == kind {
                return Ok(said);
            }
        }
    }
}
