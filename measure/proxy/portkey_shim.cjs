// Portkey 1.15.2 answers every stream with 500 "TypeError: immutable" on Node 20 (its issue 1389): it edits the headers
// of a fetch response. Those edits fail silently here, so that its streams can be measured.
for (const name of ['append', 'delete', 'set']) {
  const original = Headers.prototype[name];
  Headers.prototype[name] = function (...args) {
    try { return original.apply(this, args); } catch (e) { if (e.message !== 'immutable') throw e; }
  };
}
