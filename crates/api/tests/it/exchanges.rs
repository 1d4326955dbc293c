//! Operations on a session whose sandbox goes away under them: with the session, or without it.

use std::sync::Arc;
use std::time::Duration;

use api::{Duplex, Exchange};
use domain::exchange::{ExchangeError, Item, Opening};
use domain::{Code, SessionEnd, SessionEndReason};
use futures_util::future::{BoxFuture, join_all};
use store::testing::TestDatabase;
use store::{SessionFence, WorkerPlace};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::app::App;
use crate::client::{Client, Reply};

/// A worker that says nothing of its own: what it answers is sent by the test.
struct Told {
    opened: mpsc::UnboundedSender<mpsc::Sender<Item>>,
}

impl Exchange for Told {
    fn open<'a>(&'a self, _: &'a WorkerPlace, _: Opening) -> BoxFuture<'a, Result<Duplex, ExchangeError>> {
        let (to, _) = mpsc::channel(1);
        let (answer, from) = mpsc::channel(1);
        let _ = self.opened.send(answer);
        Box::pin(async move { Ok(Duplex { to, from }) })
    }
}

/// Asks for everything at once. When all of it has begun, `then` happens, and the sandbox is gone.
async fn ask_all(
    client: &Client,
    path: &str,
    opened: &mut mpsc::UnboundedReceiver<mpsc::Sender<Item>>,
    then: impl Future<Output = ()>,
) -> Vec<Reply> {
    let file = format!("{path}?path=a");
    let archive = format!("{path}/archive");
    let form = "--XX\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a\"\r\n\r\nx\r\n--XX--\r\n";
    let requests = [
        client.request("GET", &file),
        client.request("PUT", &file).body("x"),
        client.request("DELETE", &file),
        client.request("GET", &format!("{path}/list")),
        client.request("GET", &archive),
        client.request("PUT", &archive).body("x"),
        client.request("POST", path).header("content-type", "multipart/form-data; boundary=XX").body(form),
        client.request("GET", &format!("{path}/watch")).header("accept", "text/event-stream"),
    ];
    let count = requests.len();
    let asked = requests.map(|request| {
        let client = client.clone();
        tokio::spawn(async move { client.send(request).await })
    });
    let mut begun = Vec::new();
    while begun.len() < count {
        let opened = timeout(Duration::from_secs(60), opened.recv()).await;
        begun.push(opened.expect("all of it begins").expect("an exchange"));
    }
    then.await;
    for answer in begun {
        let lost = ExchangeError::new(Code::SandboxLost, "The sandbox went away.");
        answer.send(Item::Failed(lost)).await.expect("is waited for");
    }
    join_all(asked).await.into_iter().map(|reply| reply.expect("an answer")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_goes_away_with_its_session_is_the_end_of_the_session() {
    let (sender, mut opened) = mpsc::unbounded_channel();
    let database = TestDatabase::new().await.expect("a database");
    let app = App::reaching(Arc::new(Told { opened: sender }), database, |_| {}).await;
    let client = app.client().await;
    let worker = app.worker().await;
    let path = format!("/v1/sessions/{}/files", client.session().await);
    let claimed = app.store.claim_sessions(worker.id(), 1).await.expect("sessions");
    let fence = SessionFence::of(&claimed[0]).expect("mine");
    app.store.session_running(&fence, 1).await.expect("runs");

    for reply in ask_all(&client, &path, &mut opened, async {}).await {
        reply.problem(500, "sandbox_lost");
    }
    let ends = async {
        let end = SessionEnd::because(SessionEndReason::Deleted);
        app.store.end_session(&fence, end).await.expect("ends");
    };
    for reply in ask_all(&client, &path, &mut opened, ends).await {
        let problem = reply.problem(409, "session_ended");
        assert_eq!(problem["session_end"]["reason"], "deleted", "{problem:#}");
    }
}
