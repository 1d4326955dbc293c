//! The twins have the shape of what they document.

use std::collections::BTreeSet;

use domain::policy::{Approval, Layer, LimitRules, Policy, ToolLimits, ToolRule, ToolRules};
use serde::Serialize;
use serde_json::{Value, json};

fn schema(name: &str) -> Value {
    let document = crate::openapi();
    let schema = document["components"]["schemas"][name].clone();
    assert!(schema.is_object(), "{name}");
    schema
}

fn same_fields(name: &str, value: impl Serialize) {
    let value = serde_json::to_value(value).expect("serialises");
    let schema = schema(name);
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(keys(&schema["properties"]), keys(&value), "{name}");
}

fn same_words<T: Serialize>(name: &str, all: &[T]) {
    let words: Vec<Value> = all.iter().map(|word| serde_json::to_value(word).expect("serialises")).collect();
    let schema = schema(name);
    let documented: Vec<Value> = match schema["enum"].as_array() {
        Some(words) => words.clone(),
        None => schema["oneOf"]
            .as_array()
            .expect("an enumeration")
            .iter()
            .map(|choice| choice["const"].as_str().map_or_else(|| choice["enum"][0].clone(), Value::from))
            .collect(),
    };
    assert_eq!(documented, words, "{name}");
}

#[test]
fn fields_are_those_of_domain() {
    same_fields("CallResult", domain::CallResult::default());
    same_fields("CallError", domain::CallError::new(domain::Code::Timeout, "x"));
    same_fields("CallEnded", domain::CallEnded::because(domain::EndReason::Exited));
    same_fields("CallUsage", domain::CallUsage::default());
    let answer = tools::dialect::Answer { system: tools::Dialect::OpenManus, result: Value::Null };
    same_fields("DialectAnswer", answer);
    same_fields(
        "Truncation",
        domain::Truncation { total_bytes: 2, shown_bytes: 1, dropped_bytes: 0, artifact_id: None },
    );
    same_fields("SessionEnd", domain::SessionEnd::because(domain::SessionEndReason::Idle));
    same_fields("Resources", domain::SizeClass::Small.resources());
    same_fields("EffectiveLimits", domain::policy::EffectiveLimits::default());
    same_fields("ToolPermissions", tools::Permissions::default());
    same_fields("ToolAnnotations", tools::Annotations::default());
}

#[test]
fn a_whole_policy_has_the_documented_fields() {
    let limits = LimitRules {
        sessions: Some(1),
        requests_per_minute: Some(1),
        cpu_hours_per_day: Some(1.0),
        running_calls: Some(1),
        queued_calls: Some(1),
        session_running_calls: Some(1),
        session_shells: Some(1),
        shells: Some(1),
        timeout_ms: Some(1),
        output_bytes: Some(1),
        stored_bytes: Some(1),
        idle_timeout_s: Some(1),
        lifetime_s: Some(1),
        cpus: Some(1.0),
        memory_mb: Some(1),
        disk_mb: Some(1),
        pids: Some(1),
    };
    let rule = ToolRule { approval: Some(Approval::Deny), limits: ToolLimits { timeout_ms: Some(1) } };
    let tools = ToolRules {
        enabled: Some(vec!["*".to_owned()]),
        disabled: vec!["bash".to_owned()],
        per_tool: [("bash".to_owned(), rule.clone())].into(),
    };
    same_fields("LimitRules", &limits);
    same_fields("ToolRule", &rule);
    same_fields("ToolLimits", &rule.limits);
    same_fields("ToolRules", &tools);
    same_fields("Policy", Policy { tools, limits, runtime: Some("runsc".to_owned()) });
}

#[test]
fn words_are_those_of_domain() {
    use domain::{CallStatus, EndReason, SessionEndReason, SessionStatus, SizeClass};
    same_words("CallStatus", CallStatus::ALL);
    same_words("SessionEndReason", SessionEndReason::ALL);
    same_words("SessionStatus", &[SessionStatus::Starting, SessionStatus::Running, SessionStatus::Ended]);
    same_words("SizeClass", SizeClass::ALL);
    let systems = {
        use tools::Dialect::{CoworkForge, Mycoder, OpenCowork, OpenManus, Toolhost};
        [Toolhost, OpenCowork, Mycoder, OpenManus, CoworkForge]
    };
    same_words("SourceSystem", &systems);
    same_words("Effect", &[domain::Effect::Pure, domain::Effect::Idempotent, domain::Effect::Effectful]);
    same_words("Approval", &[Approval::Auto, Approval::Deny]);
    same_words("PolicyLayer", &[Layer::Installation, Layer::Tenant, Layer::Role, Layer::Key, Layer::Session]);
    same_words("ShellStatus", &[domain::ShellStatus::Running, domain::ShellStatus::Exited]);
    same_words("StreamName", &[domain::StreamName::Stdout, domain::StreamName::Stderr]);
    same_words("TenantStatus", &[domain::TenantStatus::Active, domain::TenantStatus::Suspended]);
    let reasons = [
        EndReason::Exited,
        EndReason::Signal,
        EndReason::Oom,
        EndReason::Timeout,
        EndReason::Cancelled,
        EndReason::Denied,
        EndReason::Quota,
        EndReason::SessionEnded,
        EndReason::SessionReset,
        EndReason::ToolError,
        EndReason::PlatformError,
        EndReason::Lost,
    ];
    same_words("EndReason", &reasons);
    // Users read what each means.
    let page = include_str!("../../../../docs/api.md");
    for reason in reasons {
        let word = serde_json::to_value(reason).expect("a word");
        let row = format!("\n| `{}` | ", word.as_str().expect("a word"));
        assert!(page.contains(&row), "{word} is not in docs/api.md");
    }
    for reason in SessionEndReason::ALL {
        let row = format!("\n| `{}` | {} |\n", reason.as_str(), reason.message());
        assert!(page.contains(&row), "{reason:?} is not in docs/api.md as it is told");
    }
}

#[test]
fn content_blocks_have_the_documented_fields() {
    let text = domain::ContentBlock::Text { mime_type: None, text: "x".to_owned(), artifact_id: None };
    assert_eq!(serde_json::to_value(text).expect("serialises"), json!({"type": "text", "text": "x"}));
    let image = domain::ContentBlock::Image {
        mime_type: "image/png".to_owned(),
        data: Some("AA==".to_owned()),
        artifact_id: Some(domain::ArtifactId::from_uuid(uuid::Uuid::nil())),
    };
    let image = serde_json::to_value(image).expect("serialises");
    let documented = &schema("ContentBlock")["oneOf"][2]["properties"];
    for field in image.as_object().expect("an object").keys() {
        assert!(documented.get(field).is_some(), "{field}");
    }
}
