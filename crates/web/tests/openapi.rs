//! `docs/openapi.json` is what the program serves.

use std::path::Path;
use std::{env, fs};

#[test]
fn committed_document_is_the_one_that_is_served() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let served = uxfrm_web::openapi::text();
    if env::var_os("UPDATE").is_some() {
        fs::write(&path, &served).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    let differs = there.lines().zip(served.lines()).find(|(there, served)| there != served);
    assert!(there == served, "run it with UPDATE=1: {differs:?}");
}

#[test]
fn every_reference_leads_somewhere() {
    let text = uxfrm_web::openapi::text();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let references = text.split("\"$ref\": \"#").skip(1).filter_map(|rest| rest.split('"').next());
    let mut count = 0;
    for reference in references {
        assert!(document.pointer(reference).is_some(), "{reference}");
        count += 1;
    }
    assert!(count > 20, "{count}");
}
