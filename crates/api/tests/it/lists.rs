//! Lists: every item once, newest first, by filter, with cursors that belong to their list.

use serde_json::json;

use crate::app::{App, ids};
use crate::client::{Client, id_of};

async fn walk(client: &Client, path: &str, limit: usize) -> Vec<String> {
    let join = if path.contains('?') { '&' } else { '?' };
    let mut found = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = client.get(&format!("{path}{join}limit={limit}{cursor}")).await.expect(200);
        assert!(ids(&page).len() <= limit && page["object"] == "list");
        found.extend(ids(&page));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => {
                assert_eq!(page["has_more"], false);
                return found;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_have_every_item_once_newest_first() {
    let app = App::start().await;
    let client = app.client().await;
    let mut sessions = Vec::new();
    for n in 0..7 {
        let body = json!({"metadata": {"parity": (n % 2).to_string(), "n": n.to_string()}});
        sessions.push(id_of(&client.post("/v1/sessions", &body).await.expect(201)));
    }
    sessions.reverse();
    for limit in [1, 2, 3, 7, 100] {
        assert_eq!(walk(&client, "/v1/sessions", limit).await, sessions, "{limit}");
    }
    let even: Vec<String> = sessions.iter().step_by(2).cloned().collect();
    assert_eq!(walk(&client, "/v1/sessions?metadata.parity=0", 2).await, even);
    assert_eq!(walk(&client, "/v1/sessions?metadata.parity=0&metadata.n=2", 2).await, sessions[4..5]);
    assert_eq!(walk(&client, "/v1/sessions?status=running,ended", 2).await, Vec::<String>::new());
    assert_eq!(walk(&client, "/v1/sessions?status=starting&status=ended", 100).await, sessions);

    let mut calls = Vec::new();
    for session in &sessions[..2] {
        for _ in 0..3 {
            calls.push(client.submit(session).await);
        }
    }
    calls.reverse();
    assert_eq!(walk(&client, "/v1/calls", 4).await, calls);
    assert_eq!(walk(&client, &format!("/v1/calls?session_id={}", sessions[0]), 2).await, calls[3..]);
    assert_eq!(
        walk(&client, &format!("/v1/sessions/{}/calls?tool=bash&status=queued", sessions[1]), 2).await,
        calls[..3]
    );
    assert_eq!(walk(&client, "/v1/calls?tool=read_file", 2).await, Vec::<String>::new());
    assert_eq!(walk(&client, "/v1/calls?created_before=2020-01-01T00:00:00Z", 2).await, Vec::<String>::new());
    assert_eq!(walk(&client, "/v1/calls?created_after=2020-01-01T00:00:00Z", 2).await, calls);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_belongs_to_its_list_filter_and_tenant() {
    let app = App::start().await;
    let (ours, theirs) = (app.tenant("ours").await.1, app.tenant("theirs").await.1);
    for _ in 0..2 {
        ours.session().await;
        theirs.session().await;
    }
    let page = ours.get("/v1/sessions?limit=1").await.expect(200);
    let cursor = page["next_cursor"].as_str().expect("another page").to_owned();
    assert_eq!(ours.get(&format!("/v1/sessions?cursor={cursor}")).await.status, 200);
    for (client, path) in
        [(&ours, "/v1/sessions?status=ended&"), (&ours, "/v1/calls?"), (&theirs, "/v1/sessions?")]
    {
        client.get(&format!("{path}cursor={cursor}")).await.problem(400, "invalid_cursor");
    }
}
