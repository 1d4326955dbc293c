//! Asks a server whether it takes connections, in its own protocol: the first bytes of a session are enough.

use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

const PROTOCOL: u32 = 3 << 16;
const TERMINATE: [u8; 5] = [b'X', 0, 0, 0, 4];

/// Whether the server accepts a session (it refuses with an error while it starts or recovers).
pub(super) async fn answers(socket: &Path) -> bool {
    timeout(Duration::from_secs(5), ask(socket)).await.is_ok_and(|answer| answer.unwrap_or(false))
}

async fn ask(socket: &Path) -> std::io::Result<bool> {
    let mut stream = UnixStream::connect(socket).await?;
    let parameters = b"user\0toolhost\0database\0postgres\0\0";
    let length = u32::try_from(8 + parameters.len()).unwrap_or(u32::MAX);
    let mut message = Vec::with_capacity(8 + parameters.len());
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(&PROTOCOL.to_be_bytes());
    message.extend_from_slice(parameters);
    stream.write_all(&message).await?;
    // `R` is the answer to authentication; `E` an error such as "the database system is starting up".
    let accepted = stream.read_u8().await? == b'R';
    // Said goodbye, the server does not log a lost connection. It may be gone already.
    drop(stream.write_all(&TERMINATE).await);
    Ok(accepted)
}
