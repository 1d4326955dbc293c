//! Pages for people: they come from this process alone, and say so to the browser.

use domain::Code;

use crate::app::App;

#[tokio::test(flavor = "multi_thread")]
async fn the_documentation_needs_no_other_host_and_no_inline_script() {
    let app = App::start().await;
    let client = app.client().await.with_key("");
    let page = client.get("/docs").await;
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").to_owned();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    let text = String::from_utf8(page.bytes).expect("text");
    assert!(!text.contains("style="), "{text}");
    let loaded: Vec<&str> = ["src=\"", "rel=\"stylesheet\" href=\""]
        .iter()
        .flat_map(|mark| text.split(mark).skip(1).filter_map(|rest| rest.split('"').next()))
        .collect();
    assert_eq!(loaded, ["/docs/docs.js", "/docs/docs.css"]);
    for (file, kind) in [("/docs/docs.js", "text/javascript"), ("/docs/docs.css", "text/css")] {
        let asset = client.get(file).await;
        assert_eq!(asset.status, 200);
        assert!(asset.header("content-type").starts_with(kind), "{}", asset.header("content-type"));
        let text = String::from_utf8(asset.bytes).expect("text");
        assert!(!text.contains("//cdn") && !text.contains("http://") && !text.contains("https://"), "{file}");
    }
    client.get("/docs/other.js").await.problem(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_code_has_a_page_for_people_and_one_for_programs() {
    let app = App::start().await;
    let client = app.client().await.with_key("");
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let index = client.send(client.request("GET", "/problems").header("accept", browser)).await;
    assert_eq!(index.header("content-type"), "text/html; charset=utf-8");
    let index = String::from_utf8(index.bytes).expect("text");
    for code in Code::ALL {
        let path = format!("/problems/{code}");
        assert!(index.contains(&format!("href=\"{path}\"")), "{code}");
        let kind = client.get(&path).await.expect(200);
        assert_eq!((&kind["code"], &kind["status"]), (&code.as_str().into(), &code.status().into()));
        let page = client.send(client.request("GET", &path).header("accept", browser)).await;
        assert!(page.header("content-security-policy").contains("default-src 'none'"));
        let page = String::from_utf8(page.bytes).expect("text");
        let page = page.replace("<code>", "`").replace("</code>", "`");
        for part in [code.title(), code.meaning(), kind["advice"].as_str().expect("advice")] {
            let part =
                part.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
            assert!(page.contains(&part), "{code} without {part}");
        }
        let text = client.send(client.request("GET", &path).header("accept", "text/plain")).await;
        assert_eq!(text.header("content-type"), "text/plain; charset=utf-8");
    }
    let listed = client.get("/problems").await.expect(200);
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(Code::ALL.len()));
}
