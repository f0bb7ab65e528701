#![allow(clippy::unwrap_used)]
use http_body_util::BodyExt;
use pve_imds_model::fault::Outcome;
use pve_imds_model::request::Caller;
use tower::{ServiceExt, service_fn};

use super::*;
use crate::testing::{Log, link};

/// The answer in one line: status, the headers that matter, the body.
async fn line(fault: &Fault, endpoint: Endpoint) -> String {
    let (parts, body) = answer(fault, endpoint).into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    assert_eq!(parts.headers[CACHE_CONTROL], "no-store");
    assert_eq!(parts.headers[CONTENT_LENGTH], body.len().to_string());
    assert_eq!(
        parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes),
        (!body.is_empty()).then_some(&b"text/plain"[..])
    );
    assert_eq!(parts.extensions.get(), Some(&fault.outcome()), "telemetry hears of it");
    let mut line = parts.status.as_u16().to_string();
    for name in [RETRY_AFTER, ALLOW, CONNECTION] {
        if let Some(value) = parts.headers.get(&name) {
            line += &format!(" {name}={}", value.to_str().unwrap());
        }
    }
    format!("{line} {body:?}")
}

/// A fault as it is raised for each outcome; `None` for the one that is none.
fn fault(outcome: Outcome) -> Option<Fault> {
    Some(match outcome {
        Outcome::Ok => return None,
        Outcome::NotFound => Fault::not_found(),
        Outcome::BadRequest => Fault::bad_request(),
        Outcome::MethodNotAllowed => Fault::method_not_allowed("GET, HEAD"),
        Outcome::BodyTooLarge => Fault::body_too_large(),
        Outcome::PasswordSet => Fault::conflict(outcome),
        Outcome::TokenRequired | Outcome::TokenInvalid => Fault::unauthorized(outcome),
        Outcome::RateLimited => {
            Fault::unavailable(outcome, RetryAfter::at_least(std::time::Duration::from_millis(2_500)))
        }
        Outcome::VmExcluded => Fault::not_served(outcome),
        Outcome::Forwarded
        | Outcome::HostRefused
        | Outcome::MacRefused
        | Outcome::AudienceRefused
        | Outcome::DuplicateUuid => Fault::forbidden(outcome),
        Outcome::TokenRateLimited => {
            Fault::too_many_requests(outcome, RetryAfter::at_least(std::time::Duration::from_millis(100)))
        }
        Outcome::Panic => Fault::panic(),
        Outcome::VmUnknown => Fault::unavailable(outcome, RetryAfter::UNKNOWN_VM),
        _ => Fault::unavailable(outcome, RetryAfter::DEFAULT),
    })
}

#[tokio::test]
async fn every_fault_has_its_answer() {
    let script = r##"200 "#!ipxe\nexit\n""##;
    for (outcome, plain, ipxe) in [
        (Outcome::NotFound, r#"404 """#, script),
        (Outcome::BadRequest, r#"400 "bad_request\n""#, script),
        (Outcome::MethodNotAllowed, r#"405 allow=GET, HEAD "method_not_allowed\n""#, script),
        (Outcome::TokenRequired, r#"401 "token_required\n""#, script),
        (Outcome::TokenInvalid, r#"401 "token_invalid\n""#, script),
        (Outcome::NodeKeyUnreadable, r#"503 retry-after=2 "node_key_unreadable\n""#, script),
        (Outcome::SigningKeyUnavailable, r#"503 retry-after=2 "signing_key_unavailable\n""#, script),
        (Outcome::SubjectUnavailable, r#"503 retry-after=2 "subject_unavailable\n""#, script),
        (Outcome::AudienceRefused, r#"403 "audience_refused\n""#, r#"403 "audience_refused\n""#),
        (Outcome::DuplicateUuid, r#"403 "duplicate_uuid\n""#, r#"403 "duplicate_uuid\n""#),
        (
            Outcome::TokenRateLimited,
            r#"429 retry-after=1 connection=close "token_rate_limited\n""#,
            r##"200 connection=close "#!ipxe\nexit\n""##,
        ),
        (Outcome::PasswordSet, r#"409 "password_set\n""#, script),
        (
            Outcome::BodyTooLarge,
            r#"413 connection=close "body_too_large\n""#,
            r##"200 connection=close "#!ipxe\nexit\n""##,
        ),
        (Outcome::VmUnknown, r#"503 retry-after=1 "vm_unknown\n""#, script),
        (Outcome::VmExcluded, r#"404 """#, script),
        (Outcome::PolicyInvalid, r#"503 retry-after=2 "policy_invalid\n""#, script),
        (Outcome::MacRefused, r#"403 "mac_refused\n""#, r#"403 "mac_refused\n""#),
        (Outcome::NotesInvalid, r#"503 retry-after=2 "notes_invalid\n""#, script),
        (Outcome::SecretsDisabled, r#"503 retry-after=2 "secrets_disabled\n""#, script),
        (Outcome::SetNameInvalid, r#"503 retry-after=2 "set_name_invalid\n""#, script),
        (Outcome::ScopeUnreadable, r#"503 retry-after=2 "scope_unreadable\n""#, script),
        (Outcome::NoQuorum, r#"503 retry-after=2 "no_quorum\n""#, script),
        (Outcome::VmNotInPool, r#"503 retry-after=2 "vm_not_in_pool\n""#, script),
        (Outcome::TagMissing, r#"503 retry-after=2 "tag_missing\n""#, script),
        (Outcome::TagAmbiguous, r#"503 retry-after=2 "tag_ambiguous\n""#, script),
        (Outcome::TagNotRegistered, r#"503 retry-after=2 "tag_not_registered\n""#, script),
        (Outcome::TagPolicyUnsafe, r#"503 retry-after=2 "tag_policy_unsafe\n""#, script),
        (Outcome::ScopeInvalid, r#"503 retry-after=2 "scope_invalid\n""#, script),
        (Outcome::TokenUnreadable, r#"503 retry-after=2 "token_unreadable\n""#, script),
        (Outcome::SecretFetchFailed, r#"503 retry-after=2 "secret_fetch_failed\n""#, script),
        (Outcome::SecretDenied, r#"503 retry-after=2 "secret_denied\n""#, script),
        (Outcome::SetMissing, r#"503 retry-after=2 "set_missing\n""#, script),
        (Outcome::FieldMissing, r#"503 retry-after=2 "field_missing\n""#, script),
        (Outcome::FieldNotString, r#"503 retry-after=2 "field_not_string\n""#, script),
        (Outcome::DocumentTooLarge, r#"503 retry-after=2 "document_too_large\n""#, script),
        (Outcome::RateLimited, r#"503 retry-after=3 "rate_limited\n""#, script),
        (Outcome::Deadline, r#"503 retry-after=2 "deadline\n""#, script),
        (Outcome::Forwarded, r#"403 "forwarded\n""#, r#"403 "forwarded\n""#),
        (Outcome::HostRefused, r#"403 "host_refused\n""#, r#"403 "host_refused\n""#),
        (Outcome::Panic, r#"500 "panic\n""#, script),
    ] {
        let fault = fault(outcome).unwrap();
        assert_eq!(line(&fault, Endpoint::NocloudUserData).await, plain);
        assert_eq!(line(&fault, Endpoint::Other).await, plain);
        assert_eq!(line(&fault, Endpoint::Pxe).await, ipxe, "{outcome} to iPXE");
    }
}

/// Holds for outcomes that the table above has not heard of yet.
#[tokio::test]
async fn no_outcome_makes_ipxe_wait_or_gives_a_body_without_its_word() {
    for outcome in Outcome::ALL.iter().copied() {
        let Some(fault) = fault(outcome) else { continue };
        assert!(!line(&fault, Endpoint::Pxe).await.contains("retry-after"), "{outcome}");
        let plain = line(&fault, Endpoint::Other).await;
        let silent = fault.status() == 404;
        assert!(silent || plain.ends_with(&format!("\"{outcome}\\n\"")), "{plain}");
        for endpoint in Endpoint::ALL.iter().copied() {
            assert_eq!(status(outcome, endpoint), answer(&fault, endpoint).status(), "{outcome} {endpoint:?}");
        }
    }
}

#[tokio::test]
async fn the_cause_is_logged_once_and_the_guest_never_sees_it() {
    let log = Log::default();
    let _on = log.install("debug");
    let service = RescueLayer::new(link()).layer(service_fn(|request: Request<()>| async move {
        Err::<Response<ResponseBody>, _>(match request.uri().path() {
            "/nocloud/user-data" => {
                Fault::unavailable(Outcome::NotesInvalid, RetryAfter::DEFAULT).because("line 7: odd")
            }
            _ => Fault::not_found(),
        })
    }));
    let ask = |path: &str| service.clone().oneshot(Request::get(path).body(()).unwrap());

    let response = ask("/nocloud/user-data").await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "notes_invalid\n");
    let text = log.text();
    assert_eq!(text.lines().count(), 1, "{text}");
    for word in ["WARN", "tap106i0", "vmid=106", "nocloud_user_data", "notes_invalid (503): line 7: odd"] {
        assert!(text.contains(word), "{word} in {text}");
    }

    ask("/nothing").await.unwrap();
    let text = log.text();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.lines().last().unwrap().contains("DEBUG"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_provokes_faults_does_not_fill_the_log() {
    let log = Log::default();
    let _on = log.install("info");
    let service = RescueLayer::new(link()).layer(service_fn(|_: Request<()>| async {
        Err::<Response<ResponseBody>, _>(Fault::unavailable(Outcome::NotesInvalid, RetryAfter::DEFAULT))
    }));
    let burst = usize::try_from(crate::bounds::LOG_LINE_BURST.get()).unwrap();
    for _ in 0..burst * 2 {
        service.clone().oneshot(Request::new(())).await.unwrap();
    }
    assert_eq!(log.text().lines().count(), burst);
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_nobody_knows_is_news_once_for_each_reason() {
    let log = Log::default();
    let _on = log.install("info");
    let layer = RescueLayer::new(link());
    let unreadable = || UnknownCaller::Unreadable("106.conf: Permission denied".into());
    for why in [UnknownCaller::NoConfig, UnknownCaller::NoConfig, unreadable(), unreadable(), UnknownCaller::NoConfig] {
        let service = layer.layer(service_fn(move |_: Request<()>| {
            let caller = Caller::Unknown(why.clone());
            async move { Err::<Response<ResponseBody>, _>(caller.require().unwrap_err()) }
        }));
        for _ in 0..3 {
            service.clone().oneshot(Request::new(())).await.unwrap();
        }
    }
    let text = log.text();
    let told: Vec<_> = text.lines().map(|line| line.split_once("request failed: ").unwrap().1).collect();
    let none = "vm_unknown (503): the cluster has no configuration of this VM";
    let one = "vm_unknown (503): its configuration cannot be read: 106.conf: Permission denied";
    assert!(
        told.len() == 3 && [none, one, none].iter().zip(&told).all(|(says, line)| line.starts_with(says)),
        "{text}"
    );
    assert!(text.lines().all(|line| line.contains("WARN") && line.contains("vmid=106")), "{text}");
}
