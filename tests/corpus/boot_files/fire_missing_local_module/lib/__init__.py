"""local helpers"""
