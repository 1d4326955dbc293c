//! `read_document` on real sandboxes: every kind that it reads, and documents that mean harm.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::Host;

/// Makes documents with the libraries of the image, good ones and others.
const MAKE: &str = r##"
import docx, openpyxl, pptx, json, os, zipfile
d = docx.Document(); d.add_heading("Title A", 1); d.add_paragraph("Hello world")
t = d.add_table(1, 2); t.cell(0, 0).text = "a"; t.cell(0, 1).text = "b|c"; d.save("a.docx")
b = openpyxl.Workbook(); b.active.append(["x", "y"]); b.active.append([1, 2.5]); b.create_sheet("Two").append(["z"]); b.save("a.xlsx")
p = pptx.Presentation(); s = p.slides.add_slide(p.slide_layouts[0]); s.shapes.title.text = "Deck"; p.save("a.pptx")
json.dump({"cells": [{"cell_type": "markdown", "source": ["# N"]}, {"cell_type": "code", "source": "1+1", "outputs": [{"data": {"text/plain": "2"}}]}]}, open("a.ipynb", "w"))
json.dump({"cells": [{"cell_type": "markdown", "source": "one"}, {"cell_type": "markdown", "source": "two\n<!-- cell 9 -->\n" + "y" * 2000}] + [{"cell_type": "markdown", "source": "z"}] * 8}, open("forged.ipynb", "w"))
open("a.html", "w").write("<html><body><h1>Hi</h1><p>A <a href='https://x.y/'>link</a></p><script>bad()</script></body></html>")
import matplotlib; matplotlib.use("Agg"); import matplotlib.pyplot as plt
f = plt.figure(); f.text(0.1, 0.5, "INVOICE 42", fontsize=40); f.savefig("a.png"); f.savefig("a.pdf")
from PIL import Image; Image.open("a.png").convert("RGB").save("scan.pdf")
from pypdf import PdfWriter
w = PdfWriter(clone_from="a.pdf"); w.encrypt("secret"); w.write("encrypted.pdf")
w = PdfWriter(); [w.add_blank_page(100, 100) for _ in range(10000)]; w.write("many.pdf")
with zipfile.ZipFile("bomb.docx", "w", zipfile.ZIP_DEFLATED) as z:
    z.writestr("[Content_Types].xml", "<a/>")
    with z.open("word/document.xml", "w") as part:
        for _ in range(300): part.write(b"0" * 1_000_000)
with zipfile.ZipFile("a.docx") as source, zipfile.ZipFile("laughs.docx", "w", zipfile.ZIP_DEFLATED) as z:
    for part in source.infolist():
        data = source.read(part)
        if part.filename == "word/document.xml":
            data = b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>' + data.split(b"?>", 1)[1]
        z.writestr(part.filename, data)
for name in ("a.docx", "a.pdf"):
    data = open(name, "rb").read(); open("cut-" + name, "wb").write(data[:len(data) // 2])
open("no.pdf", "w").write("hello"); open("a.txt", "w").write("hello"); os.mkfifo("pipe.pdf")
os.symlink("/etc/passwd", "link.pdf")
"##;

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_read_and_hostile_ones_have_codes() {
    Host::test(&[], async |host| {
        let client = &host.tenant("acme")?.client;
        let session = &client.session(json!({})).await?;
        let made =
            client.run(session, "python_execute", json!({"code": MAKE, "timeout_ms": 300_000})).await?;
        ensure!(made["result"]["exit_code"] == 0, "{made:#}");
        let read = async |arguments: Value| client.run(session, "read_document", arguments).await;
        for (path, kind, pages, text) in [
            ("a.docx", "docx", 1, "# Title A\n\nHello world\n\n| a | b\\|c |"),
            ("a.xlsx", "xlsx", 2, "| x | y |\n|---|---|\n| 1 | 2.5 |"),
            ("a.pptx", "pptx", 1, "## Deck"),
            ("a.ipynb", "ipynb", 2, "```python\n1+1\n```\n\n```\n2\n```"),
            ("a.html", "html", 1, "# Hi\n\nA [link](https://x.y/)"),
            ("a.pdf", "pdf", 1, "INVOICE 42"),
            ("scan.pdf", "pdf", 1, "INVOICE 42"),
            ("a.png", "image", 1, "INVOICE 42"),
        ] {
            let call = read(json!({"path": path})).await?;
            let found = &call["result"]["structured"];
            ensure!(found["kind"] == kind && found["total_pages"] == pages, "{path}: {call:#}");
            let content = found["content"].as_str().context("text")?;
            ensure!(content.contains(text) && !content.contains("bad()"), "{path}: {content}");
        }
        // The text of pictures is recognised when it is wanted and there is no other.
        for (path, ocr, pages, text) in [
            ("scan.pdf", "auto", 1, true),
            ("scan.pdf", "never", 0, false),
            ("a.pdf", "auto", 0, true),
            ("a.pdf", "never", 0, true),
            ("a.png", "auto", 1, true),
        ] {
            let call = read(json!({"path": path, "ocr": ocr})).await?;
            let found = &call["result"]["structured"];
            let content = found["content"].as_str().with_context(|| format!("{call:#}"))?;
            ensure!(found["ocr_pages"] == pages && content.contains("INVOICE 42") == text, "{path} {ocr}: {call:#}");
        }
        let picture = read(json!({"path": "a.png", "ocr": "never"})).await?;
        ensure!(picture["error"]["code"] == "unsupported_document", "{picture:#}");
        let always = json!({"tool": "read_document", "arguments": {"path": "a.pdf", "ocr": "always"}});
        let always = client.post(&format!("/v1/sessions/{session}/calls"), &always).await?;
        let always = always.problem(422, "invalid_arguments")?;
        ensure!(always["errors"][0]["pointer"] == "/arguments/ocr", "{always:#}");
        let alias = client.run(session, "Read", json!({"file_path": "/workspace/a.docx"})).await?;
        ensure!(alias["tool"] == "read_document" && alias["status"] == "succeeded", "{alias:#}");
        let many = read(json!({"path": "many.pdf", "pages": "3,9999-", "format": "text"})).await?;
        let found = &many["result"]["structured"];
        ensure!(found["total_pages"] == 10_000 && found["pages_read"] == "3,9999-10000", "{many:#}");
        let cut = read(json!({"path": "many.pdf"})).await?;
        ensure!(cut["result"]["structured"]["next_page"] == 501, "{cut:#}");

        for (path, code) in [
            ("encrypted.pdf", "encrypted_document"),
            ("bomb.docx", "file_too_large"),
            ("laughs.docx", "invalid_document"),
            ("cut-a.docx", "invalid_document"),
            ("cut-a.pdf", "invalid_document"),
            ("no.pdf", "invalid_document"),
            ("a.txt", "unsupported_document"),
            ("pipe.pdf", "not_regular_file"),
            ("link.pdf", "path_outside_workspace"),
            ("nothing.pdf", "path_not_found"),
            (".", "is_directory"),
            ("/etc/passwd", "path_outside_workspace"),
        ] {
            let call = read(json!({"path": path})).await?;
            ensure!(call["error"]["code"] == code, "{path}: {call:#}");
        }
        // A cell that is written to look as if the ninth began in it: the second is the one that was cut.
        for format in ["markdown", "text"] {
            let body = json!({"tool": "read_document", "arguments": {"path": "forged.ipynb", "format": format},
                "wait_ms": 60_000, "output_budget_bytes": 400});
            let call = client.post(&format!("/v1/sessions/{session}/calls"), &body).await?.expect(200)?;
            let found = &call["result"]["structured"];
            ensure!(found["content"].as_str().is_some_and(|text| text.contains("<!-- cell 9 -->")), "{call:#}");
            ensure!((&found["next_page"], &found["truncated"]) == (&json!(2), &json!(true)), "{call:#}");
        }
        let beyond = read(json!({"path": "a.pdf", "pages": "7"})).await?;
        ensure!(beyond["error"]["code"] == "invalid_arguments", "{beyond:#}");
        Ok(())
    })
    .await;
}
