//! Request targets, straight into the classifier and the router.

use http::{Method, Uri};
use pve_imds_model::endpoint::parts;
use pve_imds_model::ipxe;
use pve_imds_model::request::{Caller, Endpoint, UnknownCaller};

use super::contains;
use super::vms::{CANARY, body, own};

/// Every target is one endpoint of a closed set, whatever its slashes and its query; it is answered as the plain path of
/// that endpoint is, or with iPXE's script, or not at all. A token is given to nobody who does not say for how long.
pub fn path(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let endpoint = Endpoint::classify(&text);
    slashes(&text, endpoint);
    if let Some(plain) = plain(endpoint, &text) {
        assert_eq!(Endpoint::classify(&plain), endpoint);
        assert_eq!(text.replace('/', ""), plain.replace('/', ""), "nothing else is called that");
    }

    let Ok(uri) = Uri::try_from(bytes) else { return };
    let target = uri.to_string();
    // A target in absolute or authority form has a path of its own.
    let endpoint = Endpoint::classify(uri.path());
    let document = plain(endpoint, uri.path()).map(|path| body(Method::GET, &path, &own()));
    let nobody = Caller::Unknown(UnknownCaller::NoConfig);
    let script = || Ok(ipxe::EXIT.into());
    let exists = document.clone().unwrap_or(Err(404));
    let head = exists.clone().map(|_| Default::default());
    for (method, caller, known, to_ipxe) in [
        (Method::GET, &own(), exists, script()),
        (Method::HEAD, &own(), head, Ok(Default::default())),
        (Method::DELETE, &own(), Err(405), Err(405)),
        (Method::PUT, &own(), Err(405), Err(405)),
        (Method::GET, &nobody, Err(503), script()),
    ] {
        let is_put = method == Method::PUT;
        let got = body(method, &target, caller);
        let expected = match endpoint {
            Endpoint::Pxe => to_ipxe,
            Endpoint::Ec2Token => {
                if is_put {
                    Err(400)
                } else {
                    Err(405)
                }
            }
            Endpoint::IdentityToken => Err(405),
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

/// The path without any slash too many; NoCloud's files have one name each. The set is closed: one more and this does not
/// compile.
fn plain(endpoint: Endpoint, path: &str) -> Option<String> {
    Some(match endpoint {
        Endpoint::NocloudIndex => "/nocloud".into(),
        Endpoint::NocloudMetaData => "/nocloud/meta-data".into(),
        Endpoint::NocloudUserData => "/nocloud/user-data".into(),
        Endpoint::NocloudVendorData => "/nocloud/vendor-data".into(),
        Endpoint::NocloudNetworkConfig => "/nocloud/network-config".into(),
        Endpoint::OpenstackIndex
        | Endpoint::OpenstackMetaData
        | Endpoint::OpenstackUserData
        | Endpoint::OpenstackVendorData
        | Endpoint::OpenstackNetworkData
        | Endpoint::OpenstackPassword
        | Endpoint::Ec2Index
        | Endpoint::Ec2MetaData
        | Endpoint::Ec2UserData
        | Endpoint::Ec2Dynamic => format!("/{}", parts(path).collect::<Vec<_>>().join("/")),
        Endpoint::IdentityKeys => "/.well-known/jwks.json".into(),
        Endpoint::Ec2Token | Endpoint::IdentityToken | Endpoint::Pxe | Endpoint::Other => return None,
    })
}
