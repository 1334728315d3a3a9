"""What accept length is to be expected live: chains, trees, temperatures?"""
