"""Writes the numbers that sampler_test.cpp expects of permutation(), from the definitions alone.

std::seed_seq: C++20 [rand.util.seedseq]; mt19937_64: [rand.eng.mers] with Nishimura's parameters.
Run: python3 permutation_reference.py
"""

M32, M64 = 2**32 - 1, 2**64 - 1


def seed_seq(v, n):
    b = [0x8B8B8B8B] * n
    s = len(v)
    t = 11 if n >= 623 else 7 if n >= 68 else 5 if n >= 39 else 3 if n >= 7 else (n - 1) // 2
    p = (n - t) // 2
    q = p + t
    mix = lambda x: x ^ (x >> 27)
    m = max(s + 1, n)
    for k in range(m):
        r1 = 1664525 * mix(b[k % n] ^ b[(k + p) % n] ^ b[(k - 1) % n]) & M32
        r2 = (r1 + (s if k == 0 else k % n + v[k - 1] if k <= s else k % n)) & M32
        b[(k + p) % n] = (b[(k + p) % n] + r1) & M32
        b[(k + q) % n] = (b[(k + q) % n] + r2) & M32
        b[k % n] = r2
    for k in range(m, m + n):
        r3 = 1566083941 * mix((b[k % n] + b[(k + p) % n] + b[(k - 1) % n]) & M32) & M32
        r4 = (r3 - k % n) & M32
        b[(k + p) % n] ^= r3
        b[(k + q) % n] ^= r4
        b[k % n] = r4
    return b


def mt19937_64(words):
    n, m, r = 312, 156, 31
    a = seed_seq(words, n * 2)
    x = [a[2 * i] | a[2 * i + 1] << 32 for i in range(n)]
    upper, lower = M64 ^ (2**r - 1), 2**r - 1
    if x[0] & upper == 0 and not any(x[1:]):
        x[0] = 2**63
    i = n
    while True:
        if i == n:
            for k in range(n):
                y = (x[k] & upper) | (x[(k + 1) % n] & lower)
                x[k] = x[(k + m) % n] ^ (y >> 1) ^ (0xB5026F5AA96619E9 if y & 1 else 0)
            i = 0
        y = x[i]
        i += 1
        y ^= (y >> 29) & 0x5555555555555555
        y ^= (y << 17) & 0x71D67FFFEDA60000 & M64
        y ^= (y << 37) & 0xFFF7EEE000000000 & M64
        yield y ^ (y >> 43)


def permutation(size, seed, epoch):
    numbers = mt19937_64([seed & M32, seed >> 32 & M32, epoch & M32, epoch >> 32 & M32])
    order = list(range(size))
    for left in range(size, 1, -1):
        mask = (1 << (left - 1).bit_length()) - 1
        chosen = next(n for n in (number & mask for number in numbers) if n < left)
        order[left - 1], order[chosen] = order[chosen], order[left - 1]
    return order


if __name__ == "__main__":
    print(permutation(10, 1234, 0), permutation(10, 1234, 1), permutation(10, -5, 2**40), sep="\n")
    print(sum(i * v for i, v in enumerate(permutation(1000, 7, 3))))
