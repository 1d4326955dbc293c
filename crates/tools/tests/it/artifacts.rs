//! Keeping files, listing and loading them.

use domain::{ArtifactKind, Code};
use serde_json::json;
use tools::Catalog;

use crate::world::World;

#[tokio::test]
async fn a_text_is_kept_in_versions_and_loaded() {
    let world = World::new();
    for (version, text) in [(1, "one"), (2, "two")] {
        let arguments =
            json!({"name": "report.md", "content": text, "kind": "summary", "metadata": {"a": "b"}});
        let saved = world.call("save_artifact", arguments).await.expect("saved").result;
        assert_eq!(saved.structured["version"], version);
        assert_eq!(saved.structured["mime_type"], "text/markdown; charset=utf-8");
    }
    let newest = world.call("load_artifact", json!({"name": "report.md"})).await.expect("loaded").result;
    assert_eq!((&newest.structured["content"], newest.output.as_str()), (&json!("two"), "two"));
    let first = json!({"name": "report.md", "version": 1});
    let first = world.call("load_artifact", first).await.expect("loaded").result;
    assert_eq!(first.structured["content"], "one");
    let by_id = json!({"artifact_id": first.structured["artifact_id"]});
    assert_eq!(world.call("load_artifact", by_id).await.expect("loaded").result.structured["version"], 1);
    let listed = world.call("list_artifacts", json!({})).await.expect("listed").result;
    assert_eq!(listed.structured["artifacts"].as_array().map(Vec::len), Some(1));
    let all = world.call("list_artifacts", json!({"all_versions": true})).await.expect("listed").result;
    assert_eq!(all.structured["artifacts"].as_array().map(Vec::len), Some(2));
    let none = world.call("load_artifact", json!({"name": "x"})).await.expect_err("there is none");
    assert_eq!(none.code, Code::ArtifactNotFound);
}

#[tokio::test]
async fn a_file_is_kept_under_its_own_name_and_written_back() {
    let world = World::new().with_file("/workspace/out/a.png", &[0x89, 0xff, 0]);
    let saved = world.call("save_artifact", json!({"path": "out/a.png"})).await.expect("saved").result;
    assert_eq!(
        (&saved.structured["name"], &saved.structured["mime_type"]),
        (&json!("a.png"), &json!("image/png"))
    );
    let refused = world.call("load_artifact", json!({"name": "a.png"})).await.expect_err("no text");
    assert_eq!(refused.code, Code::BinaryFile);
    let loaded = json!({"name": "a.png", "path": "back.png"});
    assert_eq!(
        world.call("load_artifact", loaded).await.expect("loaded").result.structured["path"],
        "/workspace/back.png"
    );
    assert_eq!(world.files.lock().expect("a lock")["/workspace/back.png"], [0x89, 0xff, 0]);
}

#[tokio::test]
async fn a_long_text_is_read_on() {
    let world = World::new();
    let text = "é".repeat(40_000);
    world.call("save_artifact", json!({"name": "long.txt", "content": text})).await.expect("saved");
    let (mut whole, mut offset) = (String::new(), Some(0));
    while let Some(from) = offset {
        let part = json!({"name": "long.txt", "offset": from});
        let part = world.call("load_artifact", part).await.expect("loaded").result;
        whole.push_str(part.structured["content"].as_str().expect("text"));
        offset = part.structured["next_offset"].as_u64();
        assert_eq!(part.truncated.is_some(), offset.is_some());
    }
    assert_eq!(whole, text);
}

#[tokio::test]
async fn documents_of_cowork_forge_have_their_names() {
    let world = World::new();
    for (tool, name, kind) in [
        ("SavePrdDocTool", "prd.md", ArtifactKind::Prd),
        ("save_design_doc", "design.md", ArtifactKind::Design),
        ("SaveDeliveryReportTool", "delivery_report.md", ArtifactKind::DeliveryReport),
        ("save_idea", "idea.md", ArtifactKind::Idea),
    ] {
        world.call(tool, json!({"content": tool})).await.expect("saved");
        let saved = world.artifacts.lock().expect("a lock").last().expect("one").0.clone();
        assert_eq!((saved.name.as_str(), saved.kind), (name, kind), "{tool}");
    }
    let idea = world.call("load_idea", json!({})).await.expect("loaded").result;
    assert_eq!(idea.structured["content"], "save_idea");
}

#[test]
fn wrong_arguments_are_told() {
    let catalog = Catalog::standard();
    for (tool, arguments, pointer) in [
        ("save_artifact", json!({"name": "a"}), ""),
        ("save_artifact", json!({"name": "a", "content": "x", "path": "b"}), ""),
        ("save_artifact", json!({"content": "x"}), "/name"),
        ("save_artifact", json!({"name": "a\nb", "content": "x"}), "/name"),
        ("save_artifact", json!({"name": "a", "content_base64": "?"}), "/content_base64"),
        ("save_artifact", json!({"name": "a", "content": "x", "mime_type": "text"}), "/mime_type"),
        ("save_artifact", json!({"name": "a", "content": "x", "kind": "poem"}), "/kind"),
        ("save_artifact", json!({"name": "a", "content": "x", "metadata": {"": "x"}}), "/metadata/"),
        ("load_artifact", json!({}), ""),
        ("load_artifact", json!({"artifact_id": "call_1"}), "/artifact_id"),
        ("load_artifact", json!({"artifact_id": "art_06b2m8j0v5x3t9q7k1h4c8n2ra", "version": 1}), "/version"),
    ] {
        match catalog.admit(tool, arguments.clone()) {
            Err(tools::AdmitError::Invalid(problems)) => {
                assert!(
                    problems.iter().any(|problem| problem.pointer == pointer),
                    "{arguments}: {problems:?}"
                );
            }
            other => panic!("{arguments}: {other:?}"),
        }
    }
}
