//! What JavaScript imports, from where, and what it declares again.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tests::client::structured;
use tests::{Client, Host};

use crate::node_contexts::{is_result, node};

/// A package, a module and data, below a directory that nothing starts in, and another package of the same name where contexts do.
async fn project(client: &Client, session: &str) -> Result<()> {
    let pad = "app/node_modules/left-pad";
    for (path, content) in [
        (format!("{pad}/package.json"), r#"{"exports": {"import": "./es.mjs", "require": "./common.cjs"}}"#),
        (format!("{pad}/es.mjs"), "export default 'of app, as a module'\n"),
        (format!("{pad}/common.cjs"), "module.exports = 'of app'\n"),
        (
            "app/count.mjs".to_owned(),
            "globalThis.n = (globalThis.n ?? 0) + 1; export const n = globalThis.n\n",
        ),
        ("app/d.json".to_owned(), "{\"a\": 1}\n"),
        ("node_modules/other/index.js".to_owned(), "module.exports = 'of the workspace'\n"),
        ("app/node_modules/other/index.js".to_owned(), "module.exports = 'of app'\n"),
    ] {
        let call = client.run(session, "write_file", json!({"path": path, "content": content})).await?;
        ensure!(call["status"] == "succeeded", "{call:#}");
    }
    Ok(())
}

/// Runs the code in `app`, in a context and in a fresh interpreter. In the latter the last line is shown too.
async fn in_app(client: &Client, session: &str, code: &str, more: &Value) -> Result<[Value; 2]> {
    let mut arguments = json!({"code": code, "cwd": "/workspace/app"});
    for (name, value) in more.as_object().into_iter().flatten() {
        arguments[name] = value.clone();
    }
    let fresh = client.run(session, "node_execute", arguments.clone()).await?;
    arguments["context"] = json!("main");
    Ok([client.run(session, "node_execute", arguments).await?, fresh])
}

#[tokio::test(flavor = "multi_thread")]
async fn packages_are_imported_from_the_working_directory() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        project(&client, &session).await?;
        is_result(&node(&client, &session, "main", "import one from 'other'; one").await?, "'of the workspace'")?;
        let needs = json!({"dependencies": ["left-pad"]});
        for (code, result) in [
            ("import pad from 'left-pad'\npad", "'of app, as a module'"),
            ("const pads = await import('left-pad'); pads.default", "'of app, as a module'"),
            // Without `await` at the top it is a script.
            ("async function main() { return (await import('left-pad')).default + require('left-pad') }\nmain()", "'of app, as a moduleof app'"),
            ("import('other').then((module) => module.default)", "'of app'"),
            ("import('node:path').then(async ({ sep }) => [sep, typeof (await import('fs')).readSync])", "[ '/', 'function' ]"),
            ("import { sep } from 'path'\nimport * as fs from 'node:fs'\nsep + typeof fs.readSync", "'/function'"),
        ] {
            for call in in_app(&client, &session, code, &needs).await? {
                is_result(&call, result)?;
            }
        }
        // It stays there, whatever the code does in between.
        is_result(&node(&client, &session, "main", "process.chdir('/tmp'); (await import('other')).default").await?, "'of app'")?;
        let call = node(&client, &session, "main", "import 'other'").await?;
        let error = structured(&call, "error");
        ensure!(error["value"] == "Cannot find package 'other' imported from /tmp/code.js", "{call:#}");
        ensure!(error["traceback"].as_str().is_some_and(|text| text.contains("Cannot find package")), "{call:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn imports_have_attributes_and_queries() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        project(&client, &session).await?;
        for (code, result) in [
            ("import data from './d.json' with { type: 'json' }\ndata", "{ a: 1 }"),
            ("import old from './d.json' assert { type: \"json\" };\nold", "{ a: 1 }"),
            ("import * as all from './d.json' with {\n  type: 'json',\n}\nall.default", "{ a: 1 }"),
            ("const read = await import('./d.json', { with: { type: 'json' } }); read.default", "{ a: 1 }"),
            ("import('./d.json', { with: { type: 'json' } }).then((module) => module.default)", "{ a: 1 }"),
            ("export { default } from './d.json' with { type: 'json' }\n1", "1"),
            ("const loads = [await import('./count.mjs'), await import('./count.mjs?again'), await import('./count.mjs')]; loads.map((one) => one.n)",
                "[ 1, 2, 1 ]"),
        ] {
            for call in in_app(&client, &session, code, &json!({})).await? {
                is_result(&call, result)?;
            }
        }
        let typescript = "import typed from './d.json' with { type: 'json' }\nconst n: number = typed.a\nn";
        for call in in_app(&client, &session, typescript, &json!({"typescript": true})).await? {
            is_result(&call, "1")?;
        }
        for call in in_app(&client, &session, "import bare from './d.json'", &json!({})).await? {
            let error = structured(&call, "error")["value"].as_str().unwrap_or_default();
            ensure!(error.contains("needs an import attribute"), "{call:#}");
        }
        // Lines are those of the code.
        let call = node(&client, &session, "main", "import again from './d.json' with {\n  type: 'json',\n}\nthrow Error('here')").await?;
        ensure!(structured(&call, "error")["traceback"].as_str().is_some_and(|text| text.contains(".js:4:7")), "{call:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_declaration_spoils_no_name() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let run = async |code: &str| node(&client, &session, "main", code).await;
        for (name, refused) in [
            ("a", "let a = 1; let a = 2"),
            ("b", "class b {}; let c = ;"),
            ("d", "const d = 1; function d() {}"),
        ] {
            let call = run(refused).await?;
            ensure!(structured(&call, "error")["name"] == "SyntaxError", "{call:#}");
            for declared in ["var", "let", "const", "var"] {
                is_result(
                    &run(&format!("{declared} {name} = '{declared}'; {name}")).await?,
                    &format!("'{declared}'"),
                )?;
            }
        }
        // One in a block is a `var` at the top, and so is a function there.
        for (name, in_a_block) in [
            ("e", "if (true) { function e() {} }"),
            ("f", "for (var f of [1]) {}"),
            ("g", "{ { var [g] = [1] } }"),
        ] {
            ensure!(run(in_a_block).await?["status"] == "succeeded");
            for declared in ["let", "const", "var", "let"] {
                is_result(
                    &run(&format!("{declared} {name} = '{declared}'; {name}")).await?,
                    &format!("'{declared}'"),
                )?;
            }
        }
        // An error that the code itself has thrown comes after its declarations.
        let call = run("class H {}; const i = JSON.parse('{')").await?;
        ensure!(structured(&call, "error")["name"] == "SyntaxError", "{call:#}");
        is_result(&run("var H = 1, i = 2; H + i").await?, "3")
    })
    .await;
}
