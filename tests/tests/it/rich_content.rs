//! What code shows beside its output: values in the forms that they offer, charts with their data, and what is too large for a result.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::client::structured;
use tests::{Client, Host};

/// What an artifact has.
async fn kept(host: &Host, client: &Client, id: &Value) -> Result<(Value, Vec<u8>)> {
    let path = format!("/v1/artifacts/{}", id.as_str().context("an artifact")?);
    let about = client.get(&path).await?.expect(200)?;
    let link = client.post(&format!("{path}/links"), &json!({})).await?.expect(201)?;
    let url = format!("{}{}", host.base, link["url"].as_str().context("a URL")?);
    let http = reqwest::Client::builder().no_proxy().build()?;
    Ok((about, http.get(url).send().await?.error_for_status()?.bytes().await?.to_vec()))
}

const FORMS: &str = r##"
import base64, pandas as pd
forms = {"html": "<b>h</b>", "markdown": "**m**", "svg": "<svg xmlns='http://www.w3.org/2000/svg'/>", "latex": "$x^2$",
    "json": {"a": [1, None]}, "png": b"\x89PNG", "jpeg": base64.b64encode(b"\xff\xd8\xff").decode()}
for name, data in forms.items():
    display(type(name, (), {f"_repr_{name}_": lambda self, data=data: data})())
class Bundle:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": "p", "text/html": "<i>b</i>", "image/gif": base64.b64encode(b"GIF89a").decode(), "image/webp": b"RIFF"}, {}
class Broken:
    def __repr__(self): return "broken"
    def _repr_html_(self): raise ValueError()
display(Bundle(), Broken(), "text", 7)
pd.Series([1, 2], name="s")
"##;

#[tokio::test(flavor = "multi_thread")]
async fn values_are_shown_in_the_forms_that_they_offer() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let text = |mime: &str, text: &str| json!({"type": "text", "mime_type": mime, "text": text});
        let pictures: [(&str, &[u8], &str); 5] = [
            ("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'/>", ""),
            ("image/png", b"\x89PNG", "iVBORw=="),
            ("image/jpeg", b"\xff\xd8\xff", "/9j/"),
            ("image/gif", b"GIF89a", "R0lGODlh"),
            ("image/webp", b"RIFF", "UklGRg=="),
        ];
        let image = |index: usize| json!({"type": "image", "mime_type": pictures[index].0, "data": pictures[index].2});
        let plain = |text: &str| json!({"type": "text", "text": text});
        let table = json!({"columns": [{"name": "s", "type": "int64"}], "index": [0, 1], "rows": [[1], [2]],
            "total_rows": 2, "total_columns": 1, "truncated": false});
        let expected = [
            text("text/html", "<b>h</b>"),
            text("text/markdown", "**m**"),
            text("image/svg+xml", "<svg xmlns='http://www.w3.org/2000/svg'/>"),
            text("text/latex", "$x^2$"),
            json!({"type": "json", "mime_type": "application/json", "json": {"a": [1, null]}}),
            image(1),
            image(2),
            text("text/html", "<i>b</i>"),
            image(3),
            image(4),
            plain("broken"),
            plain("text"),
            plain("7"),
            json!({"type": "json", "mime_type": "application/vnd.toolhost.table+json", "json": table}),
        ];
        for context in [json!(null), json!("main")] {
            let mut arguments = json!({"code": FORMS});
            if !context.is_null() {
                arguments["context"] = context;
            }
            let call = client.run(&session, "python_execute", arguments).await?;
            let mut content = call["result"]["content"].as_array().context("content")?.clone();
            // Every picture is an artifact too, one that is text included.
            for block in &mut content {
                let is_picture = block["mime_type"].as_str().is_some_and(|mime| mime.starts_with("image/"));
                let id = block.as_object_mut().context("a block")?.remove("artifact_id");
                ensure!(is_picture == id.is_some(), "{call:#}");
                if let Some(id) = id {
                    let (about, bytes) = kept(host, &client, &id).await?;
                    ensure!(about["kind"] == "image" && about["mime_type"] == block["mime_type"], "{about:#}");
                    let known = pictures.iter().find(|(mime, ..)| block["mime_type"] == *mime).context("a picture")?;
                    ensure!(bytes == known.1, "{about:#}");
                }
            }
            ensure!(content == expected, "{call:#}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn charts_of_each_kind_come_with_their_data() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let code = "import matplotlib.pyplot as plt\nfigure, axes = plt.subplots(2, 2)\n\
            axes[0, 0].hist([1, 1, 2], bins=2, label='h')\naxes[0, 1].pie([1, 3], labels=['a', 'b'])\n\
            axes[1, 0].boxplot([[1, 2, 3, 4, 100]])\naxes[1, 1].scatter([1, 2], [3, 4], label='dots')\naxes[1, 1].set_yscale('log')";
        let call = client.run(&session, "python_execute", json!({"code": code})).await?;
        let content = call["result"]["content"].as_array().context("content")?;
        let chart = content
            .iter()
            .find(|block| block["mime_type"] == "application/vnd.toolhost.chart+json")
            .with_context(|| format!("{call:#}"))?;
        let plots = chart["json"]["plots"].as_array().context("plots")?;
        let series: Vec<&Value> = plots.iter().map(|plot| &plot["series"][0]).collect();
        let expected = [
            json!({"type": "histogram", "edges": [1.0, 1.5, 2.0], "counts": [2.0, 1.0]}),
            json!({"type": "pie", "label": null, "labels": ["a", "b"], "values": [1, 3]}),
            json!({"type": "box", "quartiles": [1, 2, 3, 4, 4], "outliers": [100]}),
            json!({"type": "scatter", "label": "dots", "x": [1.0, 2.0], "y": [3.0, 4.0]}),
        ];
        ensure!(series.len() == 4 && plots[3]["y_scale"] == "log", "{chart:#}");
        for (series, expected) in series.iter().zip(&expected) {
            for (field, value) in expected.as_object().context("an object")? {
                ensure!(
                    series[field] == *value || (value.is_array() && numbers(&series[field]) == numbers(value)),
                    "{field}: {chart:#}"
                );
            }
        }
        Ok(())
    })
    .await;
}

/// The numbers of a list, whole ones and others alike.
fn numbers(list: &Value) -> Option<Vec<f64>> {
    list.as_array()?.iter().map(Value::as_f64).collect()
}

const TOO_LARGE: &str = r##"
import hashlib, os
big = b"\x89PNG\r\n\x1a\n" + os.urandom(2_000_000)
class Big:
    def _repr_png_(self): return big
class Page:
    def _repr_html_(self): return "<p>" + "x" * 200_000 + "</p>"
display(Big(), Page(), "y" * 100_000)
print(hashlib.sha256(big).hexdigest())
"z" * 100_000
"##;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_for_a_result_is_kept_whole() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        for arguments in [json!({"code": TOO_LARGE}), json!({"code": TOO_LARGE, "context": "main"})] {
            let call = client.run(&session, "python_execute", arguments).await?;
            let content = call["result"]["content"].as_array().context("content")?;
            ensure!(content.len() == 4, "{call:#}");
            ensure!(content[0]["mime_type"] == "image/png" && content[0]["data"].is_null(), "{call:#}");
            let (about, bytes) = kept(host, &client, &content[0]["artifact_id"]).await?;
            let sum = structured(&call, "stdout").as_str().context("a hash")?.trim_end();
            ensure!(about["sha256"] == sum && bytes.len() == 2_000_008, "{about:#}");
            for (block, mime, text) in [
                (&content[1], "text/html; charset=utf-8", format!("<p>{}</p>", "x".repeat(200_000))),
                (&content[2], "text/plain; charset=utf-8", "y".repeat(100_000)),
                (&content[3], "text/plain; charset=utf-8", format!("'{}'", "z".repeat(100_000))),
            ] {
                ensure!(
                    block["type"] == "text" && block["mime_type"].is_null(),
                    "never a broken one: {block:#}"
                );
                let (about, bytes) = kept(host, &client, &block["artifact_id"]).await?;
                ensure!(about["mime_type"] == mime && bytes == text.as_bytes(), "{about:#}");
                let id = block["artifact_id"].as_str().context("an id")?;
                ensure!(
                    call["result"]["output"].as_str().is_some_and(|output| output.contains(id)),
                    "{call:#}"
                );
            }
            ensure!(
                structured(&call, "result").as_str().is_some_and(|text| text.contains("left out")),
                "{call:#}"
            );
            let left = client.bash(&session, "find /tmp /workspace -name '.toolhost-shown*'").await?;
            ensure!(structured(&left, "stdout") == "", "{left:#}");
        }
        Ok(())
    })
    .await;
}

const SHOWN_BY_NODE: &str = r##"
const said = Symbol.for('Jupyter.display');
display('text', new Map([[1, 2]]), Buffer.from('89504e470d0a1a0a', 'hex'), 'half \ud800');
display.html('<b>h</b>');
display.markdown('**m**');
display.svg('<svg/>');
display.latex('$x$');
display.json({ a: [1, null], half: '\ud800', path: 'C:\\ud800' });
display.png(Buffer.from('89504e47', 'hex'));
display({ [said]: () => ({ 'text/plain': 'p', 'text/html': '<i>b</i>' }) });
display.json(() => 1);
display.html('<p>' + 'x'.repeat(200000) + '</p>');
display.png(Buffer.alloc(2000000, 7));
({ [said]() { return { 'text/plain': 'last', 'text/markdown': '# last' }; } })
"##;

#[tokio::test(flavor = "multi_thread")]
async fn javascript_shows_what_python_shows() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let text = |mime: &str, text: &str| json!({"type": "text", "mime_type": mime, "text": text});
        let plain = |text: &str| json!({"type": "text", "text": text});
        let expected = [
            plain("text"),
            plain("Map(1) { 1 => 2 }"),
            json!({"type": "image", "mime_type": "image/png", "data": "iVBORw0KGgo="}),
            plain("half \u{fffd}"),
            text("text/html", "<b>h</b>"),
            text("text/markdown", "**m**"),
            text("image/svg+xml", "<svg/>"),
            text("text/latex", "$x$"),
            json!({"type": "json", "mime_type": "application/json",
                "json": {"a": [1, null], "half": "\u{fffd}", "path": "C:\\ud800"}}),
            json!({"type": "image", "mime_type": "image/png", "data": "iVBORw=="}),
            text("text/html", "<i>b</i>"),
        ];
        for (typescript, context) in
            [(false, None), (true, None), (false, Some("main")), (true, Some("main"))]
        {
            let mut arguments = json!({"code": SHOWN_BY_NODE, "typescript": typescript});
            if let Some(context) = context {
                arguments["context"] = json!(context);
            }
            let call = client.run(&session, "node_execute", arguments).await?;
            ensure!(structured(&call, "result") == "last" && call["result"]["is_error"] == false, "{call:#}");
            let mut content = call["result"]["content"].as_array().context("content")?.clone();
            ensure!(content.len() == 14, "{call:#}");
            for (block, size) in [(&content[11], 200_007), (&content[12], 2_000_000)] {
                let (about, _) = kept(host, &client, &block["artifact_id"]).await?;
                ensure!(about["size_bytes"] == size, "{block:#} {about:#}");
            }
            ensure!(content[13] == text("text/markdown", "# last"), "{call:#}");
            content.truncate(11);
            for block in &mut content {
                let kept = block.as_object_mut().context("a block")?.remove("artifact_id").is_some();
                ensure!(
                    kept == block["mime_type"].as_str().is_some_and(|mime| mime.starts_with("image/")),
                    "{call:#}"
                );
            }
            ensure!(content == expected, "{call:#}");
            let output = call["result"]["output"].as_str().context("text")?;
            ensure!(output.contains("[1 more could not be shown"), "{call:#}");
        }
        Ok(())
    })
    .await;
}
