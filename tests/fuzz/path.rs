//! Request targets, straight into the classifier and the router.

use http::{Method, Uri};
use pve_imds_model::ipxe;
use pve_imds_model::request::{Caller, Endpoint, UnknownCaller};

use super::contains;
use super::vms::{CANARY, DOCUMENTS, body, own};

/// Every target is one endpoint of a closed set, whatever its slashes and its query; it is answered with that
/// endpoint's document of the VM that asks, or with iPXE's script, or not at all.
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
    let endpoint = Endpoint::classify(uri.path());
    let canonical = self::canonical(endpoint);
    let document =
        canonical.and_then(|path| DOCUMENTS.iter().find(|(of, _)| *of == path)).map(|(_, document)| document);
    let nobody = Caller::Unknown(UnknownCaller::NoConfig);
    let script = || Ok(ipxe::EXIT.into());
    for (method, caller, known, to_ipxe) in [
        (Method::GET, &own(), document.cloned().ok_or(404), script()),
        (Method::HEAD, &own(), Ok(Default::default()), Ok(Default::default())),
        (Method::PUT, &own(), Err(405), Err(405)),
        (Method::GET, &nobody, Err(503), script()),
    ] {
        let got = body(method, &target, caller);
        let expected = match endpoint {
            Endpoint::Pxe => to_ipxe,
            _ if document.is_some() => known,
            _ => Err(404),
        };
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
