//! Request targets, straight into the classifier and the router.

use http::{Method, Uri};
use pve_imds_model::request::{Caller, Endpoint, UnknownCaller};

use super::contains;
use super::vms::{CANARY, DOCUMENTS, body, own};

/// Every target is one endpoint of a closed set, whatever its slashes and its query; it is answered with that
/// endpoint's document of the VM that asks, or not at all.
pub fn path(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let endpoint = Endpoint::classify(&text);
    slashes(&text, endpoint);
    let canonical = canonical(endpoint);
    if let Some(canonical) = canonical {
        assert_eq!(Endpoint::classify(canonical), endpoint);
        assert_eq!(text.replace('/', ""), canonical.replace('/', ""), "nothing else is called that");
    }

    let Ok(uri) = Uri::try_from(bytes) else { return };
    let target = uri.to_string();
    // A target in absolute or authority form has a path of its own.
    let canonical = self::canonical(Endpoint::classify(uri.path()));
    let document =
        canonical.and_then(|path| DOCUMENTS.iter().find(|(of, _)| *of == path)).map(|(_, document)| document);
    let nobody = Caller::Unknown(UnknownCaller::NoConfig);
    for (method, caller, known, absent) in [
        (Method::GET, &own(), document.cloned().ok_or(404), 404),
        (Method::HEAD, &own(), Ok(Default::default()), 404),
        (Method::PUT, &own(), Err(405), 404),
        (Method::GET, &nobody, Err(503), 404),
    ] {
        let got = body(method, &target, caller);
        let expected = if document.is_some() { known } else { Err(absent) };
        assert_eq!(got, expected, "{target}");
        assert!(!got.is_ok_and(|body| contains(&body, CANARY.as_bytes())));
    }
}

/// Doubled and trailing slashes mean nothing.
fn slashes(text: &str, endpoint: Endpoint) {
    assert_eq!(Endpoint::classify(&text.replace('/', "//")), endpoint);
    assert_eq!(Endpoint::classify(&format!("/{text}/")), endpoint);
}

/// The one path that an endpoint with a document is known by. The set is closed: one more and this does not compile.
fn canonical(endpoint: Endpoint) -> Option<&'static str> {
    match endpoint {
        Endpoint::NocloudIndex => Some("/nocloud"),
        Endpoint::NocloudMetaData => Some("/nocloud/meta-data"),
        Endpoint::NocloudUserData => Some("/nocloud/user-data"),
        Endpoint::NocloudVendorData => Some("/nocloud/vendor-data"),
        Endpoint::NocloudNetworkConfig => Some("/nocloud/network-config"),
        Endpoint::Pxe | Endpoint::Other => None,
    }
}
