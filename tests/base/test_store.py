"""The disk cache: whole entries or none, bounded, safe against damage and concurrent writers."""

import os
import threading

from tilewright.base.store import Store, content_key


def test_round_trip(tmp_path):
    store = Store(tmp_path, 1 << 20)
    key = content_key("graph", b"target")
    assert store.get(key) is None
    assert store.put(key, {"plan": b"{}", "object": bytes(range(256)), "empty": b""})
    assert store.get(key) == {"plan": b"{}", "object": bytes(range(256)), "empty": b""}


def test_keys_separate_their_parts():
    assert content_key("ab", "c") != content_key("a", "bc")


def test_damage_counts_as_absent(tmp_path):
    store = Store(tmp_path, 1 << 20)
    key = content_key("x")
    store.put(key, {"a": b"12345678"})
    path = next(p for p in tmp_path.glob("*/*"))
    for damage in (b"", b"TWCACHE1", path.read_bytes()[:-1], path.read_bytes()[:-1] + b"!"):
        path.write_bytes(damage)
        assert store.get(key) is None
        assert not path.exists()
        store.put(key, {"a": b"12345678"})
        assert store.get(key) == {"a": b"12345678"}


def test_size_is_bounded_and_the_oldest_goes(tmp_path):
    store = Store(tmp_path, 3000)
    keys = [content_key(str(i)) for i in range(5)]
    for age, key in enumerate(keys):
        store.put(key, {"a": bytes(900)})
        os.utime(store._path(key), (age, age))
    store.put(content_key("last"), {"a": bytes(900)})
    assert store.get(keys[0]) is None
    assert store.get(content_key("last")) is not None
    assert sum(p.stat().st_size for p in tmp_path.glob("*/*")) <= 3000


def test_an_unwritable_directory_is_no_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert not Store(tmp_path / "file", 1 << 20).put(content_key("x"), {"a": b"1"})


def test_concurrent_writers_leave_one_whole_entry(tmp_path):
    store = Store(tmp_path, 1 << 20)
    key = content_key("x")
    threads = [threading.Thread(target=lambda: [store.put(key, {"a": b"z" * 5000}) for _ in range(20)]) for _ in range(4)]
    for t in threads:
        t.start()
    seen = [store.get(key) for _ in range(100)]
    for t in threads:
        t.join()
    assert all(s is None or s == {"a": b"z" * 5000} for s in seen)
    assert not list(tmp_path.glob("*/.tmp-*"))
